"""What happens to the scheduler (events), and what it owes once a commit is done (replies).

Knows nothing about streams or rows. Invariant: an event carries all that its handling needs, the
time included, so the same events on the same state give the same state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from segue.types import Attachment, Capacity, Generation, ModelRunnerOutput, StepKey, Submission


class PauseState(Enum):
    """PAUSED_NEW: running requests go on, none is admitted. PAUSED_ALL: nothing is scheduled."""

    UNPAUSED = "unpaused"
    PAUSED_NEW = "paused_new"
    PAUSED_ALL = "paused_all"


@dataclass(slots=True, frozen=True)
class RequestsSubmitted:
    """The choices of one call, accepted together or not at all; maybe submitted before."""

    gateway_id: str
    submissions: tuple[Submission, ...]
    delivered: tuple[Attachment, ...]
    now_ms: int


@dataclass(slots=True, frozen=True)
class SessionOpened:
    """A gateway's hello. `attachments` are all that it wants: the rest of its own is given up."""

    gateway_id: str
    attachments: tuple[Attachment, ...]
    now_ms: int


@dataclass(slots=True, frozen=True)
class RequestsAttached:
    """A gateway takes these requests over, from whatever gateway has them."""

    gateway_id: str
    attachments: tuple[Attachment, ...]
    now_ms: int


@dataclass(slots=True, frozen=True)
class RequestAborted:
    gateway_id: str
    request_id: str
    reason: str
    now_ms: int


@dataclass(slots=True, frozen=True)
class OwnerGone:
    """No session of this owner came back within the orphan timeout."""

    owner: str
    now_ms: int


@dataclass(slots=True, frozen=True)
class ExecutorRegistered:
    executor_id: str
    address: str


@dataclass(slots=True, frozen=True)
class ExecutorConnected:
    """What an executor says of itself in its hello; `last_step` is the last one it accepted.

    `connection` names the stream that it said it on; the answer is for that stream and no other.
    """

    executor_id: str
    incarnation_id: str
    generation: Generation | None
    last_step: StepKey | None
    first_kept_step_id: int
    capacity: Capacity
    now_ms: int
    connection: int = 0


@dataclass(slots=True, frozen=True)
class GenerationEnded:
    """The claims about an executor's memory end here: it is lost, or its step failed."""

    executor_id: str
    generation: Generation
    cause: str
    now_ms: int


@dataclass(slots=True, frozen=True)
class LaneDrained:
    """The executor gets no new requests, and gives back those that it has."""

    executor_id: str
    now_ms: int


@dataclass(slots=True, frozen=True)
class ModelOutputReceived:
    executor_id: str
    result: ModelRunnerOutput
    now_ms: int


@dataclass(slots=True, frozen=True)
class PauseChanged:
    state: PauseState


@dataclass(slots=True, frozen=True)
class Setting:
    """What a flag counts as until somebody starts a scheduler with another `flag`. Both as text."""

    value: str
    flag: str


@dataclass(slots=True, frozen=True)
class SettingsChanged:
    """All of them or none. None: what the flag says counts again."""

    changes: Mapping[str, Setting | None]


@dataclass(slots=True, frozen=True)
class PrefixCacheReset:
    reset_running: bool


@dataclass(slots=True, frozen=True)
class Tick:
    """Time passed: finished requests older than their keep are forgotten."""

    now_ms: int


Event = (
    RequestsSubmitted
    | SessionOpened
    | RequestsAttached
    | RequestAborted
    | OwnerGone
    | ExecutorRegistered
    | ExecutorConnected
    | GenerationEnded
    | LaneDrained
    | ModelOutputReceived
    | PauseChanged
    | SettingsChanged
    | PrefixCacheReset
    | Tick
)


class RejectCode(Enum):
    QUEUE_FULL = "queue_full"
    TOO_LONG = "too_long"
    INVALID = "invalid"
    UNSUPPORTED = "unsupported"


@dataclass(slots=True, frozen=True)
class Accepted:
    """The gateway owns the request from now on; its next row has this index."""

    gateway_id: str
    request_id: str
    next_index: int
    submission: Submission | None = None  # told to a gateway that attached without knowing it


@dataclass(slots=True, frozen=True)
class Unknown:
    gateway_id: str
    request_id: str


@dataclass(slots=True, frozen=True)
class Detached:
    gateway_id: str
    request_id: str


@dataclass(slots=True, frozen=True)
class Rejected:
    gateway_id: str
    request_id: str
    code: RejectCode
    message: str
    retry_after_ms: int = 0


@dataclass(slots=True, frozen=True)
class LaneOpened:
    """The executor is to be told `Open`; then it gets the steps in flight after `last_step_id`."""

    executor_id: str
    generation: Generation
    next_step_id: int
    results_after_step_id: int
    last_step_id: int
    is_new: bool
    connection: int = 0


@dataclass(slots=True, frozen=True)
class LaneRefused:
    executor_id: str
    reason: str
    connection: int = 0


@dataclass(slots=True, frozen=True)
class CacheReset:
    is_reset: bool


@dataclass(slots=True, frozen=True)
class SettingsTaken:
    """All that are changed now."""

    settings: Mapping[str, Setting]


@dataclass(slots=True, frozen=True)
class SettingsRefused:
    reason: str


Reply = (
    Accepted
    | Unknown
    | Detached
    | Rejected
    | LaneOpened
    | LaneRefused
    | CacheReset
    | SettingsTaken
    | SettingsRefused
)


@dataclass(slots=True)
class Counters:
    """Of this process, for status, logs and metrics; nothing is decided by them."""

    num_streams_resumed: int = 0
    num_duplicate_submissions: int = 0
    num_tokens_recomputed: int = 0
    num_steps_finished: int = 0
    num_stale_outputs: int = 0
    num_adoptions: int = 0
    num_generations: int = 0
    num_generations_ended: int = 0
    num_preemptions: int = 0
    num_finished: dict[str, int] = field(default_factory=dict[str, int])
