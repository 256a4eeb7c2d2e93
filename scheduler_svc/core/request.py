"""A request as the scheduler sees it: token ids, progress, and where it stands.

Knows nothing about text, lanes' queues or Redis. Invariant: `all_token_ids` are prompt, then
output, and only tokens really known; `block_hashes` is the hash chain of its full blocks.

The newest tokens stand apart, in a short list. A step appends one to each of a thousand requests,
and the ends of a thousand long lists are a thousand pages of memory, more than a CPU has addresses
of at hand: on a virtual machine each would cost as much as all else that is done with the request.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from segue.types import Finish, FinishReason, Submission, TokenLogprobs

HASH_SEED = b"segue"
EXTRA_FLAGS = ("drains_elsewhere", "is_loading", "is_load_finished")


class RequestStatus(IntEnum):
    """PREEMPTED orders before every finished state, as in vLLM."""

    WAITING = 0
    RUNNING = 1
    PREEMPTED = 2
    SWAPPED = 3
    WAITING_FOR_GRAMMAR = 4
    WAITING_FOR_REMOTE_KVS = 5
    FINISHED_STOPPED = 10
    FINISHED_LENGTH_CAPPED = 11
    FINISHED_ABORTED = 12
    FINISHED_ERROR = 13


FINISHED_STATUS = {
    FinishReason.STOP: RequestStatus.FINISHED_STOPPED,
    FinishReason.LENGTH: RequestStatus.FINISHED_LENGTH_CAPPED,
    FinishReason.ABORT: RequestStatus.FINISHED_ABORTED,
    FinishReason.ERROR: RequestStatus.FINISHED_ERROR,
}


BLOCKED_STATUS = (RequestStatus.WAITING_FOR_GRAMMAR, RequestStatus.WAITING_FOR_REMOTE_KVS)


class GrammarState(Enum):
    """What became of a request's grammar. REFUSED: it failed, and the scheduler saw it."""

    NONE = ""
    COMPILING = "compiling"
    READY = "ready"
    FAILED = "failed"
    REFUSED = "refused"


@dataclass(slots=True, frozen=True)
class MultiModalItem:
    """An image or the like: `length` placeholder tokens from `offset` on, an embedding for each."""

    offset: int
    length: int
    item_hash: str


class QueueName(Enum):
    """HOLDING: waiting, but in possession of blocks; always drained before WAITING."""

    WAITING = "waiting"
    HOLDING = "holding"
    RUNNING = "running"
    SWAPPED = "swapped"


@lru_cache(maxsize=1024)
def _stop_ids(eos_token_id: int | None, stop_token_ids: tuple[int, ...]) -> frozenset[int | None]:
    """One set for all requests that end alike."""
    return frozenset((eos_token_id, *stop_token_ids))


class StepFields:
    """What each step of a running request reads or writes.

    A base of its own for one reason: slots lie in memory by name, a base's before its heirs', so
    these are on three lines of the cache and not on five. A thousand requests do not fit into it.
    """

    __slots__ = (
        "max_total_tokens",
        "num_computed_tokens",
        "num_in_flight_tokens",
        "num_output_placeholders",
        "num_prompt_tokens",
        "num_stale_output_tokens",
        "num_tokens",
        "recent_token_ids",
        "request_id",
        "status",
        "stop_ids",
    )


class Request(StepFields):
    """Fields by the scheduler's specification, section 1; `docs/state.md` names those stored."""

    __slots__ = (
        "_block_size",
        "_hash_extra",
        "_older_token_ids",
        "block_hashes",
        "block_ids",
        "drains_elsewhere",
        "drop_stale_output",
        "finish",
        "finished_at_ms",
        "grammar_state",
        "is_deferred",
        "is_load_finished",
        "is_loading",
        "is_prefill_chunk",
        "lane_id",
        "mm_items",
        "next_decode_eligible_step",
        "num_cached_tokens",
        "num_lane_losses",
        "num_preemptions",
        "num_registered_blocks",
        "output_logprobs",
        "owner",
        "priority_key",
        "queue",
        "queue_rank",
        "spec_token_ids",
        "submission",
    )

    def __init__(
        self,
        submission: Submission,
        *,
        block_size: int,
        mm_items: tuple[MultiModalItem, ...] = (),
        has_grammar: bool = False,
    ) -> None:
        self.submission = submission
        self.request_id = submission.request_id
        self._older_token_ids = list(submission.prompt_token_ids)
        self.recent_token_ids: list[int] = []
        self.num_tokens = self.num_prompt_tokens = len(self._older_token_ids)
        self.priority_key = (submission.priority, submission.arrival_unix_ms, self.request_id)
        params = submission.sampling_params
        self.max_total_tokens = self.num_prompt_tokens + params.max_tokens
        self.stop_ids = _stop_ids(params.eos_token_id, params.stop_token_ids)
        self.status = RequestStatus.WAITING
        self.grammar_state = GrammarState.NONE
        if has_grammar:
            self.status = RequestStatus.WAITING_FOR_GRAMMAR
            self.grammar_state = GrammarState.COMPILING
        self.mm_items = mm_items
        self.is_loading = False  # KV comes from elsewhere, and was not taken over yet
        self.is_load_finished = False
        self.lane_id = ""
        self.owner = ""
        self.queue: QueueName | None = None
        self.queue_rank = 0
        self.is_deferred = False
        self.num_computed_tokens = 0
        self.num_in_flight_tokens = 0
        self.num_output_placeholders = 0
        self.num_stale_output_tokens = 0
        self.drop_stale_output = False
        self.drains_elsewhere = False
        self.is_prefill_chunk = False
        self.num_preemptions = 0
        self.num_cached_tokens: int | None = None
        self.next_decode_eligible_step = 0
        self.num_lane_losses = 0
        self.spec_token_ids: list[int] = []
        self.block_ids: list[int] = []
        self.num_registered_blocks = 0
        self.output_logprobs: list[TokenLogprobs] = []
        self.finish: Finish | None = None
        self.finished_at_ms = 0
        self._block_size = block_size
        self._hash_extra = submission.adapter.encode()
        self.block_hashes: list[bytes] = []
        self.update_block_hashes()

    @property
    def all_token_ids(self) -> list[int]:
        """Prompt and output, to be read."""
        if self.recent_token_ids:
            self._older_token_ids += self.recent_token_ids
            self.recent_token_ids.clear()
        return self._older_token_ids

    @property
    def num_output_tokens(self) -> int:
        return self.num_tokens - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        return self.all_token_ids[self.num_prompt_tokens :]

    @property
    def is_finished(self) -> bool:
        return self.status >= RequestStatus.FINISHED_STOPPED

    def append_output(self, token_id: int) -> None:
        """Append one token; hashes follow by `update_block_hashes`, once for several tokens."""
        self.recent_token_ids.append(token_id)
        self.num_tokens += 1

    def last_token_ids(self, count: int) -> list[int]:
        """The newest `count` tokens, found in the recent ones where those are enough."""
        known = self.recent_token_ids
        if count > len(known):
            known = self.all_token_ids
        return known[len(known) - count :]

    def update_block_hashes(self) -> None:
        """Extend the chain over the blocks that are full now (specification 7.1).

        A block's hash covers its predecessor's, its tokens, the adapter, multimodal items in it,
        and in the first block the cache salt.
        """
        hashes, size = self.block_hashes, self._block_size
        num_full = self.num_tokens // size
        for index in range(len(hashes), num_full):
            digest = blake2b(hashes[-1] if hashes else HASH_SEED, digest_size=16)
            digest.update(array("i", self.all_token_ids[index * size : (index + 1) * size]))
            if self._hash_extra:
                digest.update(self._hash_extra)
            if self.mm_items:
                self._hash_items(digest, index * size)
            if index == 0:
                digest.update(b"\0" + self.submission.cache_salt.encode())
            hashes.append(digest.digest())

    def _hash_items(self, digest: blake2b, start: int) -> None:
        for item in self.mm_items:
            if item.offset < start + self._block_size and item.offset + item.length > start:
                digest.update(f"\0mm:{item.item_hash}:{item.offset - start}".encode())

    def set_output(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> None:
        """Replace the whole output; what was cut off loses its hashes."""
        self.all_token_ids[self.num_prompt_tokens :] = token_ids
        self.num_tokens = self.num_prompt_tokens + len(token_ids)
        self.output_logprobs = list(logprobs)
        del self.block_hashes[self.num_prompt_tokens // self._block_size :]
        self.update_block_hashes()

    def set_finished(self, finish: Finish, now_ms: int) -> None:
        assert not self.is_finished
        self.status = FINISHED_STATUS[finish.reason]
        self.finish = finish
        self.finished_at_ms = now_ms
        self.spec_token_ids = []

    def revive(self) -> None:
        """A finished request goes on: its end is undone, and what is in flight does not count."""
        assert self.is_finished
        assert self.queue is None
        assert not self.block_ids
        self.status = RequestStatus.PREEMPTED
        self.finish = None
        self.finished_at_ms = 0
        self.num_computed_tokens = 0
        self.num_output_placeholders = 0
        self.is_prefill_chunk = False
        self.drop_output_in_flight()

    def without_lane(self) -> Request:
        """The same request as if no lane had ever had it; its output and its end stay."""
        fresh = Request(self.submission, block_size=self._block_size)
        fresh.set_output(self.output_token_ids, self.output_logprobs)
        fresh.owner = self.owner
        fresh.finish, fresh.finished_at_ms = self.finish, self.finished_at_ms
        fresh.num_cached_tokens = self.num_cached_tokens
        fresh.num_preemptions = self.num_preemptions
        fresh.num_lane_losses = self.num_lane_losses
        if self.is_finished:
            fresh.status = self.status
        elif self.status is not RequestStatus.WAITING:
            fresh.status = RequestStatus.PREEMPTED
        return fresh

    def drop_output_in_flight(self) -> None:
        """What was planned for it is dropped when it comes, from whatever lane."""
        self.num_stale_output_tokens = self.num_in_flight_tokens
        self.drop_stale_output = self.drains_elsewhere = self.num_in_flight_tokens > 0

    def extra_state(self) -> dict[str, Any]:
        """What only some requests have; stored beside the fixed columns."""
        if self.grammar_state is GrammarState.NONE and not (
            self.drains_elsewhere or self.is_loading
        ):
            return {}
        extra: dict[str, Any] = {name: True for name in EXTRA_FLAGS if getattr(self, name)}
        if self.grammar_state is not GrammarState.NONE:
            extra["grammar"] = self.grammar_state.value
        return extra

    def restore_extra_state(self, extra: dict[str, Any]) -> None:
        for name in EXTRA_FLAGS:
            setattr(self, name, name in extra)
        self.grammar_state = GrammarState(extra.get("grammar", ""))
