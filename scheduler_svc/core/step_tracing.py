"""Under which trace a step is planned: the shell says it, and the core carries it.

Knows the text of a W3C traceparent and nothing about spans. Invariant: whether a step is traced
changes nothing that is decided.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from segue.types import SchedulerOutput, StepKey

SAMPLED = "01"
TraceparentOf = Callable[[str, StepKey], str]
"""(executor id, key of the step that is about to be planned) -> its traceparent, or empty."""


def untraced(executor_id: str, key: StepKey) -> str:
    return ""


def always_traced(plan: SchedulerOutput) -> SchedulerOutput:
    """The same plan, kept by every service whatever the ratio; untraced stays untraced."""
    traceparent = plan.traceparent
    if not traceparent or traceparent.endswith(SAMPLED):
        return plan
    return replace(plan, traceparent=traceparent[: -len(SAMPLED)] + SAMPLED)
