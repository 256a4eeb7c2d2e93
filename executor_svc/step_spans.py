"""The executor's spans of a step: `execute_model`, and under it what the runner has measured.

Knows plans, phases and the context that a plan carries; knows no stream. Invariant: they hang under
the scheduler's `executor.execute`, and are exported where that is: where the plan says so, where
the step fails, and where it is slow, since then it is slow for the scheduler too.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from executor_svc.step_phase import StepPhase
from segue.tracing import names
from segue.tracing.ended_span import AttributeValue, EndedSpan
from segue.tracing.step_context import step_context
from segue.types import ModelRunnerOutput, SchedulerOutput

if TYPE_CHECKING:
    from segue.tracing.tracer import Tracer


class MeasuredRunner(Protocol):
    @property
    def phases(self) -> list[StepPhase]:
        """Of the last step."""
        ...

    @property
    def num_positions_computed(self) -> int: ...


class StepSpans:
    """Called on the thread that computes, after a step's result has gone out."""

    def __init__(
        self, tracer: Tracer, runner: MeasuredRunner, executor_id: str, slow_step_ns: int
    ) -> None:
        self._tracer = tracer
        self._runner = runner
        self._executor_id = executor_id
        self._slow_step_ns = slow_step_ns
        self._num_positions = 0

    def step_ended(
        self,
        plan: SchedulerOutput,
        outcome: ModelRunnerOutput | Exception,
        started_ns: int,
        ended_ns: int,
    ) -> None:
        num_computed = self._runner.num_positions_computed - self._num_positions
        self._num_positions += num_computed
        context = step_context(plan.traceparent)
        if context is None:
            return
        error = f"{type(outcome).__name__}: {outcome}" if isinstance(outcome, Exception) else ""
        is_slow = ended_ns - started_ns >= self._slow_step_ns
        if not (context.execute.is_sampled or error or is_slow):
            return
        parent = replace(context.execute, is_sampled=True, is_remote=True)
        offset_ns = time.time_ns() - time.monotonic_ns()
        own = self._tracer.child_of(parent)
        attributes: dict[str, AttributeValue] = {
            names.STEP_ID: plan.step_id,
            names.EPOCH: plan.epoch,
            names.LANE: self._executor_id,
            names.TOKENS_SCHEDULED: num_computed,  # counted here, and not read from the plan
            names.STEP_NUM_REQUESTS: len(plan.num_scheduled_tokens),
        }
        start, end = started_ns + offset_ns, ended_ns + offset_ns
        self._tracer.record(
            EndedSpan(names.SPAN_EXECUTE_MODEL, own, parent, start, end, attributes, error=error)
        )
        for phase in self._runner.phases:
            start, end = phase.started_ns + offset_ns, phase.ended_ns + offset_ns
            self._tracer.record(EndedSpan(phase.name, self._tracer.child_of(own), own, start, end))
