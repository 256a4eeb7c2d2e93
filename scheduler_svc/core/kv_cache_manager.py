"""Blocks for requests: prefix look-up, slots for a step's tokens, and giving them back.

Knows nothing about queues or budgets. Invariant: an attempt that fails leaves no trace, and a
look-up changes nothing (specification 7.1 and 7.2).
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler_svc.core.block_pool import BlockPool, KVCacheBlock
from scheduler_svc.core.journal import Journal
from scheduler_svc.core.request import Request
from scheduler_svc.core.scheduler_config import SchedulerConfig


class KVCacheManager:
    def __init__(self, config: SchedulerConfig, journal: Journal) -> None:
        self._block_size = config.block_size
        self._max_model_len = config.max_model_len
        self._enable_caching = config.enable_prefix_caching
        self._drop_last_hit = config.eagle_drop_last_block
        self._journal = journal
        self.pool = BlockPool(config.num_gpu_blocks, journal)

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-min(num_tokens, self._max_model_len) // self._block_size)

    def reads_cache(self, request: Request) -> bool:
        return self._enable_caching and not request.submission.skip_reading_prefix_cache

    def get_computed_blocks(self, request: Request) -> list[KVCacheBlock]:
        """The longest run of leading blocks that are cached, one token short of all tokens."""
        hits: list[KVCacheBlock] = []
        if not self.reads_cache(request):
            return hits
        max_hits = (len(request.all_token_ids) - 1) // self._block_size
        for block_hash in request.block_hashes[:max_hits]:
            block = self.pool.lookup(block_hash)
            if block is None:
                break
            hits.append(block)
        if self._drop_last_hit and hits:
            hits.pop()
        return hits

    def can_hold_whole(
        self, request: Request, hits: Sequence[KVCacheBlock], num_watermark_blocks: int
    ) -> bool:
        """Room for all tokens known of a request that is to be admitted; nothing is reserved."""
        need = self.num_blocks_for(len(request.all_token_ids)) - len(hits)
        need += sum(block.ref_cnt == 0 for block in hits) + num_watermark_blocks
        return need <= self.pool.num_free_blocks

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        hits: Sequence[KVCacheBlock] = (),
        *,
        num_lookahead_tokens: int = 0,
        num_kept_blocks: int = 0,
    ) -> list[KVCacheBlock] | None:
        """Blocks for the next `num_new_tokens` tokens, appended to the request's table after the hits.

        Full blocks of known tokens become hittable at once: the step that is being planned writes
        them before anything reads them (rule 3). `num_kept_blocks` have to stay free. Returns the
        new blocks (without the hits), or None if there is no room.
        """
        num_computed = request.num_computed_tokens + len(hits) * self._block_size
        end = num_computed + num_new_tokens
        table_size = len(request.block_ids) + len(hits)
        num_new = max(0, self.num_blocks_for(end + num_lookahead_tokens) - table_size)
        need = num_new
        for block in hits:
            if block.ref_cnt == 0:
                need += 1
        if need + num_kept_blocks > self.pool.free_queue.num_free:
            return None
        if hits:
            self.pool.touch(hits)
            request.block_ids.extend(block.block_id for block in hits)
            request.num_registered_blocks = len(hits)
        if num_new:
            blocks = self.pool.allocate(num_new)
            request.block_ids.extend(block.block_id for block in blocks)
        else:
            blocks = []
        self.register_full_blocks(request, min(end, len(request.all_token_ids)))
        self._journal.requests[request.request_id] = request
        return blocks

    def register_full_blocks(self, request: Request, num_tokens: int) -> None:
        """Make the full blocks within the first `num_tokens` tokens hittable."""
        num_full = num_tokens // self._block_size
        if not self._enable_caching or num_full <= request.num_registered_blocks:
            return
        for index in range(request.num_registered_blocks, num_full):
            block = self.pool.blocks[request.block_ids[index]]
            self.pool.register(block, request.block_hashes[index])
        request.num_registered_blocks = num_full

    def unregister_from(self, request: Request, first_index: int) -> None:
        """Take back what a step that is undone has registered (PROTOCOL.md H20)."""
        for index in range(first_index, request.num_registered_blocks):
            block = self.pool.blocks[request.block_ids[index]]
            if block.block_hash is not None:
                self.pool.unregister(block)
        request.num_registered_blocks = min(request.num_registered_blocks, first_index)

    def free(self, request: Request) -> None:
        """Give back the whole table, its last block first; hashes stay until a block is popped."""
        if not request.block_ids:
            return
        blocks = self.pool.blocks
        self.pool.release([blocks[block_id] for block_id in reversed(request.block_ids)])
        request.block_ids = []
        request.num_registered_blocks = 0
        self._journal.requests[request.request_id] = request

    def restore_registered(self, request: Request) -> None:
        """Count the blocks of a restored table that are registered: a prefix of it."""
        blocks = self.pool.blocks
        count = 0
        for block_id in request.block_ids:
            if blocks[block_id].block_hash is None:
                break
            count += 1
        request.num_registered_blocks = count
