"""A step's spans: `engine.step` and its children, told when the step's result has been taken.

What is stored of a step says its ids and its start, so the scheduler that takes its result exports
it, whoever planned it. Knows plans and lanes; knows nothing about how spans travel. Invariant: a
step is exported once or not at all, and always if it preempts, fails, is slow, is the first or last
of an epoch on its lane, or was left behind by another scheduler.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from scheduler_svc.core.lane import Lane, PlannedStep
from scheduler_svc.tracing.request_spans import RequestSpans
from scheduler_svc.tracing.step_attributes import Row, packed, rows_of, step_attributes
from segue.tracing import names
from segue.tracing.ended_span import AttributeValue, EndedSpan
from segue.tracing.step_context import (
    StepContext,
    is_kept_by_ratio,
    new_step_context,
    step_context,
)
from segue.tracing.trace_context import TraceContext
from segue.types import ModelRunnerOutput, SchedulerOutput, StepKey

if TYPE_CHECKING:
    from scheduler_svc.config import SchedulerServiceConfig
    from segue.tracing.ended_span import SpanLink
    from segue.tracing.tracer import Tracer

# With more requests than this, links go bare and their attributes into one text on the step.
MAX_LINKS_WITH_ATTRIBUTES = 4
RATIO, FIRST, LAST = "ratio", "first_of_epoch", "last_of_epoch"
PREEMPTS, FAILED, SLOW, ADOPTED = "preempts", "failed", "slow", "adopted"
Interval = tuple[int, int]


@dataclass(slots=True, frozen=True)
class StepTracing:
    """How steps are kept, and what is said of all of them."""

    policy: str
    ratio: float
    slow_step_ns: int

    @classmethod
    def of(cls, config: SchedulerServiceConfig) -> StepTracing:
        slow_step_ns = config.trace_slow_step_ms * 1_000_000
        return cls(config.policy, config.trace_step_ratio, slow_step_ns)


@dataclass(slots=True)
class OpenStep:
    """Planned and not yet retired. `kept`: why it will be exported, whatever its end."""

    lane: Lane
    plan: SchedulerOutput
    num_bytes: int
    context: StepContext
    scheduled: Interval | None = None
    committed: Interval | None = None
    sent_ns: int = 0
    kept: list[str] = field(default_factory=list[str])
    previous: TraceContext | None = None  # the last step of the epoch before


@dataclass(slots=True, frozen=True)
class _Attempt:
    """A step that was about to be planned; it may have come to nothing."""

    context: StepContext
    started_ns: int
    kept: list[str]


class StepSpans:
    def __init__(self, tracer: Tracer, requests: RequestSpans, tracing: StepTracing) -> None:
        self._tracer = tracer
        self._requests = requests
        self.tracing = tracing
        self.leader_id = ""
        self._open: dict[str, list[OpenStep]] = {}  # by lane, in order
        self._last_adopted: dict[str, TraceContext] = {}  # by lane, until a step is planned there
        self._attempts: dict[tuple[str, int], _Attempt] = {}
        self._epochs: dict[str, int] = {}  # of the last step planned by this process, by lane
        self._uncommitted: list[OpenStep] = []
        self._unsent: list[OpenStep] = []

    def adopt(self, lane: Lane) -> None:
        """What another scheduler has left in flight is ours to end."""
        for step in lane.planned:
            context = step_context(step.plan.traceparent)
            if context is None:
                continue
            opened = OpenStep(lane, step.plan, len(step.body), context, kept=[ADOPTED])
            self._open.setdefault(lane.executor_id, []).append(opened)
            self._last_adopted[lane.executor_id] = _always(context.root)

    def last_step_with(self, lane_id: str, request_id: str) -> SpanLink | None:
        """Among those in flight on this lane; it is kept, so the link will not point at nothing."""
        for step in reversed(self._open.get(lane_id, [])):
            if request_id in step.plan.num_scheduled_tokens:
                about = {names.LINK_KIND: names.LINK_RESUMED_AFTER}
                return self._tracer.link(_always(step.context.root), about)
        return None

    def traceparent_of(self, executor_id: str, key: StepKey) -> str:
        """For a step that is about to be planned."""
        now_ns = time.time_ns()
        kept = [RATIO] if is_kept_by_ratio(key.step_id, self.tracing.ratio) else []
        # The step before may be of the same round of planning, and not have been told yet.
        is_next = (executor_id, key.step_id - 1) in self._attempts
        if self._epochs.get(executor_id) != key.epoch and not is_next:
            kept.append(FIRST)
        identity = f"{self.leader_id} {executor_id} {key.epoch} {key.step_id}"
        context = new_step_context(identity, now_ns, is_sampled=bool(kept))
        self._attempts[(executor_id, key.step_id)] = _Attempt(context, now_ns, kept)
        return context.execute.traceparent()

    def planned(self, lane: Lane, step: PlannedStep, ended_ns: int) -> SpanLink | None:
        """For the phases that this step begins: a link to it, where it is known to be kept."""
        plan = step.plan
        attempt = self._attempts[(lane.executor_id, plan.step_id)]
        opened = OpenStep(lane, plan, len(step.body), attempt.context, kept=attempt.kept)
        opened.scheduled = (attempt.started_ns, ended_ns)
        if plan.preempted_req_ids:
            opened.kept.append(PREEMPTS)
        steps = self._open.setdefault(lane.executor_id, [])
        if FIRST in opened.kept:
            self._epochs[lane.executor_id] = plan.epoch
            opened.previous = self._last_adopted.pop(lane.executor_id, None)
            if steps:
                steps[-1].kept.append(LAST)
                opened.previous = _always(steps[-1].context.root)
        steps.append(opened)
        self._uncommitted.append(opened)
        if not opened.kept:
            return None
        about = {names.LINK_KIND: names.LINK_BEGUN_BY}
        return self._tracer.link(_always(attempt.context.root), about)

    def planning_ended(self) -> None:
        self._attempts.clear()

    def committed(self, started_ns: int, ended_ns: int) -> None:
        for step in self._uncommitted:
            step.committed = (started_ns, ended_ns)
        self._unsent += self._uncommitted
        self._uncommitted = []

    def sent(self, now_ns: int) -> None:
        for step in self._unsent:
            step.sent_ns = now_ns
        self._unsent = []

    def result_taken(self, executor_id: str, result: ModelRunnerOutput, update: Interval) -> None:
        """If it was of the oldest step in flight; any other changes nothing, as in the core."""
        steps = self._open.get(executor_id)
        if not steps or steps[0].plan.step_id != result.step_id:
            return
        if steps[0].plan.generation == result.generation:
            self._end(steps.pop(0), update[0], update[1], result=result)

    def end_lost(self, lane: Lane, cause: str, now_ns: int) -> None:
        """Steps that the core has cancelled will have no result."""
        in_flight = {step.plan.key for step in lane.planned}
        steps = self._open.get(lane.executor_id, [])
        self._open[lane.executor_id] = [s for s in steps if s.plan.key in in_flight]
        for step in steps:
            if step.plan.key not in in_flight:
                step.kept.append(FAILED)
                self._end(step, now_ns, now_ns, error=cause)

    def _end(
        self,
        step: OpenStep,
        answered_ns: int,
        ended_ns: int,
        *,
        result: ModelRunnerOutput | None = None,
        error: str = "",
    ) -> None:
        context = step.context
        if ended_ns - context.planned_ns >= self.tracing.slow_step_ns:
            step.kept.append(SLOW)
        if not step.kept:
            return
        root = _always(context.root)
        rows = rows_of(step.plan)
        self._tracer.record(
            EndedSpan(
                names.SPAN_STEP,
                root,
                None,
                context.planned_ns,
                ended_ns,
                self._attributes(step, rows),
                self._links(step, rows),
                error=error,
            )
        )
        self._child(names.SPAN_SCHEDULE, root, step.scheduled)
        self._child(names.SPAN_COMMIT, root, step.committed, "redis")
        self._tracer.record(
            EndedSpan(
                names.SPAN_EXECUTE,
                _always(context.execute),
                root,
                step.sent_ns or context.planned_ns,
                answered_ns,
                _execute_attributes(step, result),
                error=error,
            )
        )
        if result is not None:
            self._child(names.SPAN_UPDATE, root, (answered_ns, ended_ns))

    def _child(
        self, name: str, root: TraceContext, interval: Interval | None, system: str = ""
    ) -> None:
        if interval is None:
            return
        about = {names.DB_SYSTEM_NAME: system} if system else {}
        context = self._tracer.child_of(root)
        self._tracer.record(EndedSpan(name, context, root, *interval, about))

    def _attributes(self, step: OpenStep, rows: list[Row]) -> dict[str, AttributeValue]:
        policy = step.lane.policy
        num_usable = policy.num_usable_blocks() if policy is not None else 0
        attributes = step_attributes(step.plan, rows, num_usable)
        attributes[names.LANE] = step.lane.executor_id
        attributes[names.POLICY] = self.tracing.policy
        attributes[names.STEP_KEPT] = step.kept
        attributes[names.WIRE_BYTES] = step.num_bytes
        if ADOPTED in step.kept:
            attributes[names.IS_ADOPTED] = True
        if len(rows) > MAX_LINKS_WITH_ATTRIBUTES:
            attributes[names.STEP_REQUESTS] = packed(rows)
        return attributes

    def _links(self, step: OpenStep, rows: list[Row]) -> list[SpanLink]:
        """To the span of each request in the step, where that is sampled, in the step's order."""
        link_of, saying = self._requests.link_of, self._tracer.link_saying
        found = [(link_of(row[0]), row) for row in rows]
        if len(rows) > MAX_LINKS_WITH_ATTRIBUTES:
            links = [link for link, _ in found if link is not None]
        else:
            links = [
                saying(
                    link,
                    {
                        names.REQUEST_ID: request_id,
                        names.REQUEST_PHASE: phase,
                        names.REQUEST_TOKENS: num_tokens,
                    },
                )
                for link, (request_id, phase, num_tokens) in found
                if link is not None
            ]
        if step.previous is not None:
            about = {names.LINK_KIND: names.LINK_PREVIOUS_EPOCH}
            links.append(self._tracer.link(step.previous, about))
        return links


def _execute_attributes(
    step: OpenStep, result: ModelRunnerOutput | None
) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {
        names.STEP_ID: step.plan.step_id,
        names.LANE: step.lane.executor_id,
    }
    if result is not None:
        timings = result.timings
        attributes |= {
            names.TOKENS_SAMPLED: sum(map(len, result.sampled_token_ids)),
            names.EXECUTOR_IDLE_US: timings.idle_us,
            names.EXECUTOR_PREPARE_US: timings.prepare_us,
            names.EXECUTOR_FORWARD_US: timings.forward_us,
            names.EXECUTOR_SAMPLE_US: timings.sample_us,
        }
    return attributes


def _always(context: TraceContext) -> TraceContext:
    """What is kept is exported, though nobody knew it when the step was planned."""
    return context if context.is_sampled else replace(context, is_sampled=True)
