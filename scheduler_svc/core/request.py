"""A request as the scheduler sees it: token ids, progress, and where it stands.

Knows nothing about text, lanes' queues or Redis. Invariant: `all_token_ids` are prompt, then
output, and only tokens really known; `block_hashes` is the hash chain of its full blocks.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from enum import Enum, IntEnum
from hashlib import blake2b
from typing import Any

from segue.types import Finish, FinishReason, Submission, TokenLogprobs

HASH_SEED = b"segue"


class RequestStatus(IntEnum):
    """PREEMPTED orders before every finished state, as in vLLM."""

    WAITING = 0
    RUNNING = 1
    PREEMPTED = 2
    SWAPPED = 3
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


class QueueName(Enum):
    """HOLDING: waiting, but in possession of blocks; always drained before WAITING."""

    WAITING = "waiting"
    HOLDING = "holding"
    RUNNING = "running"
    SWAPPED = "swapped"


class Request:
    """Fields by the scheduler's specification, section 1; `docs/state.md` names those stored."""

    __slots__ = (
        "_block_size",
        "_hash_extra",
        "all_token_ids",
        "block_hashes",
        "block_ids",
        "drains_elsewhere",
        "drop_stale_output",
        "finish",
        "finished_at_ms",
        "is_deferred",
        "is_prefill_chunk",
        "lane_id",
        "next_decode_eligible_step",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_in_flight_tokens",
        "num_lane_losses",
        "num_output_placeholders",
        "num_preemptions",
        "num_prompt_tokens",
        "num_registered_blocks",
        "num_stale_output_tokens",
        "output_logprobs",
        "owner",
        "priority_key",
        "queue",
        "queue_rank",
        "request_id",
        "spec_token_ids",
        "status",
        "submission",
    )

    def __init__(self, submission: Submission, *, block_size: int) -> None:
        self.submission = submission
        self.request_id = submission.request_id
        self.all_token_ids = list(submission.prompt_token_ids)
        self.num_prompt_tokens = len(self.all_token_ids)
        self.priority_key = (submission.priority, submission.arrival_unix_ms, self.request_id)
        self.status = RequestStatus.WAITING
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
    def num_tokens(self) -> int:
        return len(self.all_token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.all_token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        return self.all_token_ids[self.num_prompt_tokens :]

    @property
    def is_finished(self) -> bool:
        return self.status >= RequestStatus.FINISHED_STOPPED

    def append_output(self, token_id: int) -> None:
        """Append one token; hashes follow by `update_block_hashes`, once for several tokens."""
        self.all_token_ids.append(token_id)

    def update_block_hashes(self) -> None:
        """Extend the chain over the blocks that are full now (specification 7.1).

        A block's hash covers its predecessor's, its tokens, the adapter, and in the first block the
        cache salt.
        """
        hashes, size = self.block_hashes, self._block_size
        num_full = len(self.all_token_ids) // size
        for index in range(len(hashes), num_full):
            digest = blake2b(hashes[-1] if hashes else HASH_SEED, digest_size=16)
            digest.update(array("i", self.all_token_ids[index * size : (index + 1) * size]))
            digest.update(self._hash_extra)
            if index == 0:
                digest.update(b"\0" + self.submission.cache_salt.encode())
            hashes.append(digest.digest())

    def set_output(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> None:
        """Replace the whole output; what was cut off loses its hashes."""
        self.all_token_ids[self.num_prompt_tokens :] = token_ids
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
        assert self.is_finished and self.queue is None and not self.block_ids
        self.status = RequestStatus.PREEMPTED
        self.finish = None
        self.finished_at_ms = 0
        self.num_computed_tokens = 0
        self.num_output_placeholders = 0
        self.is_prefill_chunk = False
        self.num_stale_output_tokens = self.num_in_flight_tokens
        self.drop_stale_output = self.num_in_flight_tokens > 0

    def extra_state(self) -> dict[str, Any]:
        """What only some requests have; stored beside the fixed columns."""
        return {"drains_elsewhere": True} if self.drains_elsewhere else {}

    def restore_extra_state(self, extra: dict[str, Any]) -> None:
        self.drains_elsewhere = bool(extra.get("drains_elsewhere", False))
