"""Blocks for requests: prefix look-up, slots for a step's tokens, and giving them back.

Knows nothing about queues or budgets. Invariant: an attempt that fails leaves no trace, and a
look-up changes nothing (specification 7.1 and 7.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from scheduler_svc.core.block_pool import BlockPool, KVCacheBlock
from scheduler_svc.core.journal import Journal
from scheduler_svc.core.request import Request
from scheduler_svc.core.scheduler_config import SchedulerConfig


class CacheListener(Protocol):
    """Is told what happens in the prefix cache (rules/kv_events.py). Must change nothing."""

    def blocks_stored(self, request: Request, first: int, end: int, block_size: int) -> None: ...
    def block_removed(self, block_hash: bytes) -> None: ...
    def cache_cleared(self) -> None: ...


@dataclass(slots=True)
class AdmissionNeed:
    """What an admission needs beyond its new tokens. `num_kept_blocks` have to stay free.

    `registers`: full blocks are hittable at once; not so where the KV comes while other steps run.
    """

    hits: Sequence[KVCacheBlock] = ()
    num_external_tokens: int = 0
    num_lookahead_tokens: int = 0
    num_kept_blocks: int = 0
    registers: bool = True
    _num_free_hits: int = field(init=False)

    def __post_init__(self) -> None:
        self._num_free_hits = sum(block.ref_cnt == 0 for block in self.hits)

    def num_blocks_beyond(self, num_blocks: int, request: Request) -> int:
        """How many free blocks are used up by a table of `num_blocks`."""
        return num_blocks - len(request.block_ids) - len(self.hits) + self._num_free_hits


class KVCacheManager:
    def __init__(
        self, config: SchedulerConfig, journal: Journal, listener: CacheListener | None = None
    ) -> None:
        self._block_size = config.block_size
        self._max_model_len = config.max_model_len
        self._enable_caching = config.enable_prefix_caching
        self._drop_last_hit = config.eagle_drop_last_block
        self._journal = journal
        self._listener = listener
        self.pool = BlockPool(config.num_gpu_blocks, journal, listener)

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-min(num_tokens, self._max_model_len) // self._block_size)

    def reads_cache(self, request: Request) -> bool:
        return self._enable_caching and not request.submission.skip_reading_prefix_cache

    def get_computed_blocks(self, request: Request) -> list[KVCacheBlock]:
        """The longest run of leading blocks that are cached, one token short of all tokens."""
        hits: list[KVCacheBlock] = []
        if not self.reads_cache(request):
            return hits
        max_hits = (request.num_tokens - 1) // self._block_size
        for block_hash in request.block_hashes[:max_hits]:
            block = self.pool.lookup(block_hash)
            if block is None:
                break
            hits.append(block)
        if self._drop_last_hit and hits:
            hits.pop()
        return hits

    def can_hold_whole(self, request: Request, need: AdmissionNeed, num_watermark: int) -> bool:
        """Room for all tokens known of a request that is to be admitted; nothing is reserved."""
        num_blocks = self.num_blocks_for(request.num_tokens)
        beyond = need.num_blocks_beyond(num_blocks, request)
        return beyond + num_watermark <= self.pool.num_free_blocks

    def allocate_slots(
        self, request: Request, num_new_tokens: int, num_lookahead_tokens: int = 0
    ) -> list[KVCacheBlock] | None:
        """Blocks for a running request's next tokens, appended to its table; None: no room.

        Full blocks of known tokens become hittable at once: the step that is being planned writes
        them before anything reads them (rule 3). Returns the new blocks.
        """
        end = request.num_computed_tokens + num_new_tokens
        num_new = self.num_blocks_for(end + num_lookahead_tokens) - len(request.block_ids)
        blocks: list[KVCacheBlock] = []
        if num_new > 0:
            if num_new > self.pool.num_free_blocks:
                return None
            blocks = self.pool.allocate(num_new)
            request.block_ids.extend([block.block_id for block in blocks])
            self._journal.grown[request.request_id] = request
        self.register_full_blocks(request, min(end, request.num_tokens))
        return blocks

    def append_block(self, request: Request) -> int | None:
        """One block for a running request; None: no room."""
        if not self.pool.num_free_blocks:
            return None
        block_id = self.pool.allocate_one().block_id
        request.block_ids.append(block_id)
        self._journal.grown[request.request_id] = request
        return block_id

    def allocate_admission(
        self, request: Request, num_new_tokens: int, need: AdmissionNeed
    ) -> bool:
        """The same for a waiting request: the hits come first in its table. False: no room."""
        hits = need.hits
        num_computed = request.num_computed_tokens + len(hits) * self._block_size
        end = min(num_computed + need.num_external_tokens, self._max_model_len) + num_new_tokens
        num_blocks = self.num_blocks_for(end + need.num_lookahead_tokens)
        beyond = max(0, need.num_blocks_beyond(num_blocks, request))
        if beyond + need.num_kept_blocks > self.pool.num_free_blocks:
            return False
        if hits:
            self.pool.touch(hits)
            request.block_ids.extend([block.block_id for block in hits])
            request.num_registered_blocks = len(hits)
        num_new = num_blocks - len(request.block_ids)
        if num_new > 0:
            request.block_ids.extend([b.block_id for b in self.pool.allocate(num_new)])
        if need.registers:
            self.register_full_blocks(request, min(end, request.num_tokens))
        self._journal.requests[request.request_id] = request
        return True

    def register_full_blocks(self, request: Request, num_tokens: int) -> None:
        """Make the full blocks within the first `num_tokens` tokens hittable."""
        num_full = num_tokens // self._block_size
        first = request.num_registered_blocks
        if num_full <= first or not self._enable_caching:
            return
        for index in range(first, num_full):
            block = self.pool.blocks[request.block_ids[index]]
            self.pool.register(block, request.block_hashes[index])
        request.num_registered_blocks = num_full
        if self._listener is not None:
            self._listener.blocks_stored(request, first, num_full, self._block_size)

    def unregister_from(self, request: Request, first_index: int) -> None:
        """Take back what a step that is undone has registered (PROTOCOL.md H20)."""
        self.evict(request.block_ids[first_index : request.num_registered_blocks])
        request.num_registered_blocks = min(request.num_registered_blocks, first_index)

    def evict(self, block_ids: Sequence[int]) -> None:
        """These blocks do not hold what their hashes say."""
        for block_id in block_ids:
            block = self.pool.blocks[block_id]
            if block.block_hash is not None:
                self.pool.unregister(block)

    def free(self, request: Request) -> None:
        """Give back the whole table, its last block first; hashes stay until a block is popped."""
        if request.block_ids:
            self.free_table(self.take_table(request))

    def take_table(self, request: Request) -> list[int]:
        """The request's table, which is the caller's from now on."""
        table, request.block_ids = request.block_ids, []
        request.num_registered_blocks = 0
        self._journal.requests[request.request_id] = request
        return table

    def free_table(self, block_ids: Sequence[int]) -> None:
        blocks = self.pool.blocks
        self.pool.release([blocks[block_id] for block_id in reversed(block_ids)])

    def restore_registered(self, request: Request) -> None:
        """Count the blocks of a restored table that are registered: a prefix of it."""
        blocks = self.pool.blocks
        count = 0
        for block_id in request.block_ids:
            if blocks[block_id].block_hash is None:
                break
            count += 1
        request.num_registered_blocks = count
