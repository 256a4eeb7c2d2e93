"""The executor's spans hang under the step's, and are there where the step's are."""

from __future__ import annotations

import time
from typing import Any, cast

from executor_svc.step_phase import PREPARE, SWAP, StepPhase
from executor_svc.step_spans import StepSpans
from segue.tracing.ended_span import EndedSpan
from segue.tracing.step_context import StepContext, new_step_context
from segue.tracing.trace_context import TraceContext
from segue.types import Generation, ModelRunnerOutput, SchedulerOutput

GENERATION = Generation(1, 1)
SLOW_NS = 1_000_000_000


class KeptSpans:
    """What a tracer would have exported."""

    def __init__(self) -> None:
        self.spans: list[EndedSpan] = []

    def child_of(self, parent: TraceContext) -> TraceContext:
        return TraceContext(parent.trace_id, len(self.spans) + 1, parent.is_sampled)

    def record(self, span: EndedSpan) -> None:
        if span.context.is_sampled:
            self.spans.append(span)


class Runner:
    """Has computed three positions, in this step."""

    def __init__(self) -> None:
        now_ns = time.monotonic_ns()
        self.phases = [
            StepPhase(SWAP, now_ns, now_ns + 5),
            StepPhase(PREPARE, now_ns + 5, now_ns + 9),
        ]
        self.num_positions_computed = 3


def context(*, is_sampled: bool) -> StepContext:
    return new_step_context("leader e0 1 5", 1_790_000_000_000_000_000, is_sampled=is_sampled)


def spans_of(
    traceparent: str, outcome: Exception | None = None, duration_ns: int = 1000
) -> list[EndedSpan]:
    tracer = KeptSpans()
    spans = StepSpans(cast(Any, tracer), Runner(), "e0", SLOW_NS)
    plan = SchedulerOutput(5, 1, GENERATION, traceparent=traceparent)
    result = outcome or ModelRunnerOutput(5, GENERATION)
    now_ns = time.monotonic_ns()
    spans.step_ended(plan, result, now_ns - duration_ns, now_ns)
    return tracer.spans


def test_a_step_is_told_with_its_parts_and_what_was_counted_here() -> None:
    sampled = context(is_sampled=True)
    found = spans_of(sampled.execute.traceparent())
    assert [span.name for span in found] == ["execute_model", "swap", "prepare_inputs"]
    step = found[0]
    assert step.parent is not None
    assert step.parent.span_id == sampled.execute.span_id
    assert step.attributes["segue.tokens.scheduled"] == 3
    assert {span.parent for span in found[1:]} == {step.context}


def test_a_step_that_is_not_sampled_has_no_spans() -> None:
    assert spans_of(context(is_sampled=False).execute.traceparent()) == []


def test_a_step_planned_without_tracing_has_no_spans() -> None:
    assert spans_of("") == []


def test_a_step_that_fails_is_told_all_the_same() -> None:
    found = spans_of(context(is_sampled=False).execute.traceparent(), ValueError("no memory"))
    assert found[0].error == "ValueError: no memory"


def test_a_step_that_is_slow_is_told_all_the_same() -> None:
    found = spans_of(context(is_sampled=False).execute.traceparent(), duration_ns=SLOW_NS)
    assert found[0].name == "execute_model"
