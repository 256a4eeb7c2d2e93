"""A lane: one executor as the scheduler sees it, with its own blocks, queues and steps in flight.

Knows nothing about connections: an executor that is not connected is not lost (rule 4).
Invariant: `planned` holds the steps not yet retired, in order, without a gap, at most `depth`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from scheduler_svc.core.events import ExecutorConnected
from scheduler_svc.core.policy import SchedulingPolicy
from segue.types import Capacity, Generation, SchedulerOutput, StepKey


class LaneStatus(Enum):
    """LOST: its memory holds nothing (never opened, or given up), so nothing is planned for it."""

    ACTIVE = "active"
    DRAINING = "draining"
    LOST = "lost"


@dataclass(slots=True, frozen=True)
class PlannedStep:
    """A step in flight. `body` are the bytes that are stored and sent; they never change."""

    plan: SchedulerOutput
    body: bytes


@dataclass(slots=True)
class Lane:
    """`retired` names the last step whose result was taken; epoch 0: none of this generation."""

    executor_id: str
    address: str
    status: LaneStatus = LaneStatus.LOST
    incarnation_id: str = ""
    generation: Generation | None = None
    capacity: Capacity | None = None
    next_step_id: int = 1
    retired: StepKey = StepKey(0, 0)
    planned: list[PlannedStep] = field(default_factory=list[PlannedStep])
    policy: SchedulingPolicy | None = None

    @property
    def is_open(self) -> bool:
        return self.status is not LaneStatus.LOST

    @property
    def max_model_len(self) -> int:
        """How long a request can get here; 0 while its executor was never seen."""
        return self.policy.config.max_model_len if self.policy is not None else 0

    def holds_what_it_claims(self, hello: ExecutorConnected) -> bool:
        """Whether the executor's memory is what the tables say (PROTOCOL.md section 5, "same").

        It is if it is the same process in the same generation, the last step that it accepted is
        one that we know, and it can still answer each step in flight that it accepted.
        """
        if self.status is LaneStatus.LOST or self.generation is None:
            return False
        if hello.generation != self.generation or hello.incarnation_id != self.incarnation_id:
            return False
        in_flight = [step.plan.key for step in self.planned]
        if hello.last_step is None or hello.last_step.epoch == 0:
            return self.retired.epoch == 0
        if hello.last_step != self.retired and hello.last_step not in in_flight:
            return False
        last_step_id = hello.last_step.step_id
        accepted = [key for key in in_flight if key.step_id <= last_step_id]
        return all(hello.first_kept_step_id <= key.step_id for key in accepted)
