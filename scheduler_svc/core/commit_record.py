"""What happened between two commits, for those who count and trace it.

Knows nothing about who reads it. Invariant: decides nothing, is no state and is not stored; a
record is read after its commit is done, and replaced by the next.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduler_svc.core.request import Request
from segue.types import Finish, ModelRunnerOutput, SchedulerOutput


@dataclass(slots=True, frozen=True)
class TakenResult:
    """A result that counted. `outputs`: who has new rows or ended, each with its end."""

    executor_id: str
    plan: SchedulerOutput
    result: ModelRunnerOutput
    outputs: dict[str, Finish | None]


@dataclass(slots=True)
class CommitRecord:
    """In the order in which it happened; `EngineCore.last_plans` are the steps planned at the end.

    `ended` are requests that ended, whoever ended them.
    """

    accepted: list[Request] = field(default_factory=list[Request])
    results: list[TakenResult] = field(default_factory=list[TakenResult])
    ended: list[Request] = field(default_factory=list[Request])
