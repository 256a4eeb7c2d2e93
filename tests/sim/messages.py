"""What travels on the simulated streams: PROTOCOL.md section 5 as plain values.

Knows nothing about who sends. Invariant: never changed after it was made.
"""

from __future__ import annotations

from dataclasses import dataclass

from segue.types import Attachment, Capacity, Generation, ModelRunnerOutput, StepKey, Submission


@dataclass(slots=True, frozen=True)
class ExecutorHello:
    epoch: int
    leader_id: str


@dataclass(slots=True, frozen=True)
class ExecutorHelloAck:
    incarnation_id: str
    generation: Generation | None
    last_step: StepKey | None
    first_kept_step_id: int
    capacity: Capacity


@dataclass(slots=True, frozen=True)
class Refused:
    epoch_seen: int


@dataclass(slots=True, frozen=True)
class Open:
    generation: Generation
    next_step_id: int
    results_after_step_id: int
    depth: int


@dataclass(slots=True, frozen=True)
class Step:
    body: bytes


@dataclass(slots=True, frozen=True)
class StepResult:
    result: ModelRunnerOutput


@dataclass(slots=True, frozen=True)
class StepFailed:
    generation: Generation
    step_id: int
    error: str


@dataclass(slots=True, frozen=True)
class Alive:
    epoch: int


@dataclass(slots=True, frozen=True)
class SessionHello:
    gateway_id: str
    session_id: str
    leader_seen: tuple[int, str]
    attachments: tuple[Attachment, ...]


@dataclass(slots=True, frozen=True)
class NotLeader:
    pass


@dataclass(slots=True, frozen=True)
class Submit:
    submissions: tuple[Submission, ...]
    delivered: tuple[Attachment, ...]


@dataclass(slots=True, frozen=True)
class Attach:
    attachments: tuple[Attachment, ...]


@dataclass(slots=True, frozen=True)
class Abort:
    request_id: str
    reason: str
