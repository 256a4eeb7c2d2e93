"""V0's block tables: those of requests on the GPU and, while they are swapped out, on the CPU.

Knows nothing about queues or budgets. Invariant: a running request has a block for each token in
its table, and stands in `num_table_tokens`; a swapped one has them in `cpu_tables` instead of in
`block_ids`. Its last sampled token comes into the table when it is scheduled next.

Repairs what V0 does wrongly, unless `strict` (docs/decisions/v0-repairs.md): hashes of what no step
has computed yet, a number of cached tokens that is not true any more, and requests that need a part
of the watermark: given up half-way if they were recomputed, waiting for ever if swapped out.
"""

from __future__ import annotations

from enum import Enum

from scheduler_svc.core.journal import Journal
from scheduler_svc.core.request import Request
from scheduler_svc.core.three_queue.block_pool import Block, BlockPool
from scheduler_svc.core.three_queue.config import ThreeQueueConfig

SwapMap = list[tuple[int, int]]
"""(source, target), in the table's order."""


class AllocStatus(Enum):
    OK = "ok"
    LATER = "later"
    NEVER = "never"


class EngineFailure(RuntimeError):
    """V0 fails here. Only in a `strict` scheduler."""


class BlockTables:
    """`last_access` is by request: the time of the last step that it was scheduled in."""

    def __init__(self, config: ThreeQueueConfig, journal: Journal) -> None:
        self.config = config
        self._journal = journal
        self.gpu = BlockPool(config.num_gpu_blocks, journal.blocks)
        self.cpu = BlockPool(config.num_cpu_blocks, set())
        self.num_table_tokens: dict[str, int] = {}
        self.cpu_tables: dict[str, list[int]] = {}
        self.last_access: dict[str, int] = {}
        self.remembered_hits: dict[str, int] = {}  # strict only
        self._size = config.block_size
        self._caches = config.enable_prefix_caching
        self._watermark = config.num_watermark_blocks

    # Prompts

    def can_allocate(self, request: Request) -> AllocStatus:
        """Room for the whole request; cached blocks are not deducted.

        V0 gives up who needs a part of the watermark, also one that was preempted half-way.
        """
        num_blocks = _ceil_div(request.num_tokens, self._size)
        if self.gpu.num_total - num_blocks < (self._watermark if self.config.strict else 0):
            return AllocStatus.NEVER
        return self._later_or_ok(num_blocks)

    def num_cached_tokens(self, request: Request) -> int:
        """The leading blocks that are cached and computed. V0 keeps its first answer."""
        if not self._caches or request.submission.skip_reading_prefix_cache:
            return 0
        if not self.config.strict:
            return self.num_cached_blocks(request) * self._size
        request_id = request.request_id
        if request_id not in self.remembered_hits:
            self.remembered_hits[request_id] = self.num_cached_blocks(request) * self._size
        return self.remembered_hits[request_id]

    def num_cached_blocks(self, request: Request) -> int:
        if not self._caches:
            return 0
        for index, block_hash in enumerate(request.block_hashes):
            if self.gpu.lookup_computed(block_hash) is None:
                return index
        return len(request.block_hashes)

    def allocate(self, request: Request) -> None:
        """Blocks for all tokens; full ones that are cached are shared."""
        assert not request.block_ids
        num_tokens = request.num_tokens
        blocks = [
            self._share_or_allocate(self.gpu, request, index, num_tokens)
            for index in range(_ceil_div(num_tokens, self._size))
        ]
        request.block_ids = [block.block_id for block in blocks]
        self.num_table_tokens[request.request_id] = num_tokens

    # Running requests

    def can_append(self, request: Request, num_lookahead: int) -> bool:
        return self._num_touched(request, num_lookahead) <= self.gpu.num_free

    def append(self, request: Request, num_lookahead: int) -> None:
        """Bring all tokens into the table, with blocks for these and for the look-ahead slots."""
        num_tokens = request.num_tokens
        num_blocks = _ceil_div(num_tokens + num_lookahead, self._size)
        if len(request.block_ids) < num_blocks:
            self._journal.grown[request.request_id] = request
        while len(request.block_ids) < num_blocks:
            request.block_ids.append(self.gpu.allocate().block_id)
        self.num_table_tokens[request.request_id] = num_tokens

    def register_full_blocks(self, request: Request, num_tokens: int) -> bool:
        """Hash the blocks that are full. True if the table has another block for one now.

        `num_tokens`: how many are computed when this step has run. V0 does not look at that, and
        hashes blocks of a prompt that is computed in chunks before they are computed. A block whose
        content is cached already is given back for the cached one.
        """
        if not self._caches:
            return False
        num_in_table = self.num_table_tokens[request.request_id]
        num_tokens = num_in_table if self.config.strict else min(num_tokens, num_in_table)
        is_replaced = False
        for index in range(request.num_registered_blocks, num_tokens // self._size):
            block = self.gpu.blocks[request.block_ids[index]]
            if block.block_hash is not None:
                continue
            used = self.gpu.register(block, request.block_hashes[index], index + 1)
            if used is not block:
                table = list(request.block_ids)
                table[index] = used.block_id
                request.block_ids = table
                self._journal.requests[request.request_id] = request
                is_replaced = True
        request.num_registered_blocks = max(request.num_registered_blocks, num_tokens // self._size)
        return is_replaced

    # Swapping

    def can_swap_out(self, request: Request) -> bool:
        need = self._num_touched(request, 0)
        need += self._num_full_blocks_to_take(self.cpu, request, request.block_ids)
        return self.cpu.num_free >= max(need, self._num_blocks_at_least(request.block_ids))

    def swap_out(self, request: Request) -> SwapMap:
        """Give up all GPU blocks, then take CPU blocks."""
        sources = request.block_ids
        for block_id in sources:
            self.gpu.release(self.gpu.blocks[block_id])
        targets = self._take_blocks(self.cpu, request, len(sources))
        self.cpu.end_step()
        self.cpu_tables[request.request_id] = targets
        request.block_ids = []
        request.num_registered_blocks = 0
        return list(zip(sources, targets, strict=True))

    def can_swap_in(self, request: Request, num_lookahead: int) -> AllocStatus:
        """As V0 estimates it: what is copied, and what the next tokens touch."""
        table = self.cpu_tables[request.request_id]
        need = self._num_touched(request, num_lookahead)
        need += self._num_full_blocks_to_take(self.gpu, request, table)
        need = max(need, self._num_blocks_at_least(table))
        return AllocStatus.NEVER if self.gpu.num_total < need else self._later_or_ok(need)

    def swap_in(self, request: Request) -> SwapMap:
        """Give up all CPU blocks, then take GPU blocks."""
        sources = self.cpu_tables.pop(request.request_id)
        for block_id in sources:
            self.cpu.release(self.cpu.blocks[block_id])
        request.block_ids = self._take_blocks(self.gpu, request, len(sources))
        request.num_registered_blocks = self._num_hashed_blocks(request)
        return list(zip(sources, request.block_ids, strict=True))

    # Giving up

    def note_access(self, request_ids: list[str], now_ms: int) -> None:
        self.last_access.update(dict.fromkeys(request_ids, now_ms + 1))  # 0 means never

    def forget_all(self) -> None:
        """All is as new; no request may hold anything."""
        self.gpu.forget_all()
        self.cpu = BlockPool(self.config.num_cpu_blocks, set())  # V0 may have leaked some
        self.remembered_hits.clear()

    def free(self, request: Request) -> None:
        """Give up all that the request holds, from the first block to the last."""
        request_id = request.request_id
        if request_id in self.cpu_tables:
            if self.config.strict and self._caches:
                raise EngineFailure(f"{request_id} is swapped out, and its blocks are not found")
            for block_id in self.cpu_tables.pop(request_id):
                self.cpu.release(self.cpu.blocks[block_id])
        last_access = self.last_access.pop(request_id, None)
        for block_id in request.block_ids if last_access is not None else ():
            self.gpu.set_last_access(self.gpu.blocks[block_id], last_access or 0)
        for block_id in request.block_ids:
            self.gpu.release(self.gpu.blocks[block_id])
        if request.block_ids:
            request.block_ids = []
        request.num_registered_blocks = 0
        self.num_table_tokens.pop(request_id, None)
        self.remembered_hits.pop(request_id, None)

    def _later_or_ok(self, need: int) -> AllocStatus:
        """The watermark is to stay free, but who needs a part of it can have it when all is free.

        V0 has such a one wait for ever.
        """
        watermark = self._watermark
        if not self.config.strict:
            watermark = min(watermark, self.gpu.num_total - need)
        return AllocStatus.OK if self.gpu.num_free - need >= watermark else AllocStatus.LATER

    def _num_touched(self, request: Request, num_lookahead: int) -> int:
        """V0's estimate: a decode touches a block, even if its last block has room."""
        num_in_table = self.num_table_tokens[request.request_id]
        num_new = request.num_tokens - num_in_table + num_lookahead
        room = self._size - num_in_table % self._size
        return 1 + _ceil_div(num_new - room, self._size)

    def _num_full_blocks_to_take(self, pool: BlockPool, request: Request, table: list[int]) -> int:
        """Of the full blocks of a table, those that the other side has no used copy of."""
        num_full = min(self.num_table_tokens[request.request_id] // self._size, len(table))
        if not self._caches:
            return num_full
        num_used = 0
        for index in range(self._num_hashable(request, num_full)):
            block = pool.lookup(request.block_hashes[index])
            num_used += block is not None and block.ref_cnt > 0
        return num_full - num_used

    def _num_blocks_at_least(self, table: list[int]) -> int:
        """With look-ahead, a table may have empty blocks that V0's estimate leaves out."""
        if self.config.strict or not self.config.num_lookahead_slots:
            return 0
        return len(table)

    def _num_hashable(self, request: Request, num_full: int) -> int:
        """Of so many full blocks, those whose content was computed."""
        if self.config.strict:
            return num_full
        return min(num_full, request.num_computed_tokens // self._size)

    def _take_blocks(self, pool: BlockPool, request: Request, num_blocks: int) -> list[int]:
        """Blocks to copy a table to; full ones are registered, or shared if they are cached."""
        num_full = self.num_table_tokens[request.request_id] // self._size
        num_hashable = self._num_hashable(request, num_full) if self._caches else 0
        taken: list[int] = []
        for index in range(num_blocks):
            block = self._share_or_allocate(pool, request, index, num_hashable * self._size)
            if index < num_hashable and block.block_hash is None:
                pool.register(block, request.block_hashes[index], index + 1)
            taken.append(block.block_id)
        return taken

    def _share_or_allocate(
        self, pool: BlockPool, request: Request, index: int, num_tokens: int
    ) -> Block:
        """`num_tokens`: how many there are whose blocks may be shared."""
        if self._caches and (index + 1) * self._size <= num_tokens:
            cached = pool.lookup(request.block_hashes[index])
            if cached is not None:
                pool.share(cached)
                return cached
        return pool.allocate()

    def restore_table(self, request: Request) -> None:
        """Set what follows from the table of a request that was restored."""
        for index, block_id in enumerate(request.block_ids):
            if self.gpu.blocks[block_id].block_hash is not None:
                self.gpu.blocks[block_id].depth = index + 1
        for index, block_id in enumerate(self.cpu_tables.get(request.request_id, ())):
            if self.cpu.blocks[block_id].block_hash is not None:
                self.cpu.blocks[block_id].depth = index + 1
        request.num_registered_blocks = self._num_hashed_blocks(request)

    def _num_hashed_blocks(self, request: Request) -> int:
        count = 0
        for block_id in request.block_ids:
            if self.gpu.blocks[block_id].block_hash is None:
                break
            count += 1
        return count


def _ceil_div(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)
