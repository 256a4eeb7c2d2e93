"""The contract of one lane's scheduler: what the engine asks of it, and what it may change.

Write a policy of your own by subclassing `SchedulingPolicy` (docs/policies.md). Knows nothing about
connections, Redis or other lanes. Invariant: a policy is a deterministic function of its
configuration and of the calls made on it; whatever it changes that decides anything is a field of a
`Request`, a block's row, or in `scalars()`, and is noted in the journal.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

from scheduler_svc.core.block_pool import BlockRow
from scheduler_svc.core.events import PauseState
from scheduler_svc.core.journal import Journal
from scheduler_svc.core.request import Request
from scheduler_svc.core.scheduler_config import SchedulerConfig
from segue.types import (
    Finish,
    Generation,
    ModelRunnerOutput,
    SchedulerOutput,
    StepKey,
)

OnForeignFinish = Callable[[Request, Finish, int], None]
"""(request, its end, now_ms): output that ends a request which is queued on another lane now."""


def _refuse_foreign_finish(request: Request, finish: Finish, now_ms: int) -> None:
    raise AssertionError(f"{request.request_id} ended at {now_ms} on a lane that is not its own")


class SchedulingPolicy(ABC):
    """One executor's scheduler.

    `requests` is shared by all lanes; the engine puts requests in and takes expired ones out, a
    policy only reads it. A finished request stays in it, so "known" is judged by its status.
    The engine may set `on_foreign_finish` before the first call.
    """

    def __init__(
        self,
        lane_id: str,
        config: SchedulerConfig,
        requests: dict[str, Request],
        journal: Journal,
    ) -> None:
        self.lane_id = lane_id
        self.config = config
        self.requests = requests
        self.journal = journal
        self.on_foreign_finish: OnForeignFinish = _refuse_foreign_finish

    @property
    @abstractmethod
    def max_steps_in_flight(self) -> int:
        """How many steps may be planned before the first one's output is there."""

    # Requests in and out

    @abstractmethod
    def add_request(self, request: Request) -> None:
        """Queue a request behind those that wait. Sets its lane and queue."""

    @abstractmethod
    def prepend_requests(self, requests: list[Request]) -> None:
        """Queue requests that were served before in front of those that wait, in this order.

        They hold no blocks. Their output may still be in flight on another lane; then they are not
        scheduled before it has arrived, or has been cancelled there.
        """

    @abstractmethod
    def finish_request(self, request: Request, finish: Finish, now_ms: int) -> None:
        """End a request of this lane: out of its queue, blocks freed, its id to be announced.

        Safe between any two calls, also while a step with it is in flight: that output is ignored.
        """

    @abstractmethod
    def release_with_drop(self, request: Request) -> None:
        """Take a request that has not ended out of this lane, as if it had not run on it.

        Its blocks are freed and what it has in flight is dropped when it arrives (rule 5). It can
        be queued again at once, here or elsewhere.
        """

    @abstractmethod
    def take_all(self) -> list[Request]:
        """Give back all requests that wait, in order; none may be running (see `preempt_all`)."""

    # Steps

    @abstractmethod
    def schedule(
        self, key: StepKey, generation: Generation, traceparent: str = ""
    ) -> SchedulerOutput:
        """Plan one step, and count it as done: `num_computed_tokens` advances now.

        `output_indices` has each row that samples, with the index of its first token. The plan may
        be empty; it then changed nothing but the step counter and what was to be announced.
        """

    @abstractmethod
    def update_from_output(
        self, plan: SchedulerOutput, result: ModelRunnerOutput, now_ms: int
    ) -> dict[str, Finish | None]:
        """Take the result of the oldest step in flight.

        Returns the requests that have new output rows or ended, each with its end if it did; the
        rows themselves are on the requests, and what is told of them is derived from there (rule
        1). A row goes to its request wherever that is queued now; rows of finished ones are void.
        """

    @abstractmethod
    def cancel_step(self, plan: SchedulerOutput) -> None:
        """A step in flight will never answer: nothing waits for its tokens any more (H8)."""

    def take_ignored(self) -> list[str]:
        """Requests that the last `schedule` ended since they can never be served. Once each."""
        return []

    # Operations

    @abstractmethod
    def preempt_all(self) -> None:
        """Preempt what runs, last to first, and what else holds blocks; output in flight counts."""

    @abstractmethod
    def end_generation(self) -> None:
        """The executor's memory is gone; its steps were cancelled before. Rule 4.

        Preempts all, forgets hashes, makes the free list as new, drops what was to be announced.
        """

    @abstractmethod
    def set_pause_state(self, state: PauseState) -> None: ...

    @abstractmethod
    def reset_prefix_cache(self, reset_running: bool) -> bool:
        """Forget all hashes, if no block is in use; else change nothing and return False.

        `reset_running` preempts what runs first and drops its output in flight.
        """

    # Questions; they change nothing

    @abstractmethod
    def has_work(self) -> bool:
        """Whether `schedule` might plan something or has something to announce."""

    def num_tokens_given_back(self) -> int:
        """Computed and then preempted, since this policy was made; a number for people."""
        return 0

    @abstractmethod
    def num_free_blocks(self) -> int: ...

    def num_usable_blocks(self) -> int:
        """How many are free when nothing runs: block 0 is nobody's."""
        return self.config.num_usable_blocks

    @abstractmethod
    def num_waiting(self) -> int: ...

    @abstractmethod
    def num_unfinished(self) -> int: ...

    @abstractmethod
    def num_cached_prefix_tokens(self, request: Request) -> int:
        """How many tokens of the request would be found in this lane's prefix cache."""

    # State

    @abstractmethod
    def scalars(self) -> dict[str, Any]:
        """All that decides anything and is not on a request nor in a block row, as JSON values."""

    @abstractmethod
    def touched_block_ids(self) -> list[int]:
        """The blocks that are not as new: a restored policy needs their rows, and no others."""

    @abstractmethod
    def block_rows(self, block_ids: Iterable[int]) -> Iterable[BlockRow]: ...

    @abstractmethod
    def restore(
        self, queued: list[Request], blocks: list[BlockRow], scalars: dict[str, Any]
    ) -> None:
        """Take over a stored state. For a policy just made.

        `queued`: this lane's requests with `queue`, rank and block table set, each queue in order.
        """
