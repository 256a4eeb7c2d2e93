"""The trace of one step: which steps are kept, and what its traceparent says.

A step's traceparent is planned, stored and sent with it, and names its span `executor.execute`.
The rest follows from it: the root `engine.step` is the same id without its last bit, and the upper
half of the trace id is the time of planning, in microseconds. So a scheduler that finds the step in
Redis can end and export it, with its true start, though another one has planned it.

Knows nothing about plans or OpenTelemetry. Invariant: whether a step is kept by the ratio is a
function of its id, so all services agree without a word.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

from segue.tracing.trace_context import TraceContext, parse_traceparent

_LOW_64 = (1 << 64) - 1


@dataclass(slots=True, frozen=True)
class StepContext:
    """`execute` is what travels to the executor, whose spans hang under it."""

    root: TraceContext
    execute: TraceContext

    @property
    def planned_ns(self) -> int:
        """When planning began, by the clock of who planned it."""
        return (self.root.trace_id >> 64) * 1000


def is_kept_by_ratio(step_id: int, ratio: float) -> bool:
    """Of `1 / ratio` steps in a row, one; 1: all, 0: none."""
    return int(step_id * ratio) > int((step_id - 1) * ratio)


def new_step_context(identity: str, planned_ns: int, *, is_sampled: bool) -> StepContext:
    """`identity` names the step among all that were ever planned."""
    digest = int.from_bytes(blake2b(identity.encode(), digest_size=16).digest())
    trace_id = (planned_ns // 1000) << 64 | digest >> 64
    return _step_context(trace_id, (digest & _LOW_64) | 3, is_sampled)


def step_context(traceparent: str) -> StepContext | None:
    """What a stored or received step says; None where it was planned without tracing."""
    execute = parse_traceparent(traceparent)
    if execute is None or not execute.span_id & 1:
        return None
    return _step_context(execute.trace_id, execute.span_id, execute.is_sampled)


def _step_context(trace_id: int, execute_id: int, is_sampled: bool) -> StepContext:
    return StepContext(
        root=TraceContext(trace_id, execute_id ^ 1, is_sampled),
        execute=TraceContext(trace_id, execute_id, is_sampled),
    )
