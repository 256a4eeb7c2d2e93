"""V0's blocks of one device: a free list, and cached blocks that nobody uses, for eviction.

Knows nothing about requests. Invariant: a block that nobody references is either in the free list
(no hash; what was freed last is taken first) or evictable (with its hash; the one accessed longest
ago goes first). New blocks come from the free list as long as it has any.

As rows: `registration` is the last access. `rank` places a free block in the free list; of an
evictable one it is the depth, the number of blocks up to its end in the chain that it belongs to.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from scheduler_svc.core.block_pool import BlockRow

NEVER_ACCESSED = 0
MIN_STALE_ENTRIES = 64


class Block:
    """`last_access` is known of blocks that a request gave up while others used them."""

    __slots__ = ("block_hash", "block_id", "depth", "eviction", "last_access", "rank", "ref_cnt")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_cnt = 0
        self.block_hash: bytes | None = None
        self.depth = 0
        self.last_access = NEVER_ACCESSED
        self.rank: int | None = block_id
        self.eviction: tuple[int, int, int] | None = None


class BlockPool:
    """`dirty` collects the ids of changed blocks.

    A block that was registered in this step is `fresh`: it can be shared, but counts as computed
    only after the step.
    """

    def __init__(self, num_blocks: int, dirty: set[int]) -> None:
        self.blocks = [Block(block_id) for block_id in range(num_blocks)]
        self.cached: dict[bytes, Block] = {}
        self.fresh: set[int] = set()
        self.num_evictable = 0
        self._free = deque(self.blocks)
        self._evictions: list[tuple[int, int, int]] = []  # stale entries are passed over
        self._dirty = dirty

    @property
    def num_total(self) -> int:
        return len(self.blocks)

    @property
    def num_free(self) -> int:
        return len(self._free) + self.num_evictable

    def free_block_ids(self) -> list[int]:
        """The free list, in the order in which it will be used."""
        return [block.block_id for block in self._free]

    def lookup(self, block_hash: bytes) -> Block | None:
        return self.cached.get(block_hash)

    def lookup_computed(self, block_hash: bytes) -> Block | None:
        block = self.cached.get(block_hash)
        return None if block is None or block.block_id in self.fresh else block

    def allocate(self) -> Block:
        """A block without a hash, for one user."""
        block = self._free.popleft() if self._free else self._evict()
        assert block.ref_cnt == 0
        assert block.block_hash is None
        block.ref_cnt = 1
        block.rank = None
        self._dirty.add(block.block_id)
        return block

    def share(self, block: Block) -> None:
        """One more user for a cached block."""
        assert block.block_hash is not None
        if block.ref_cnt == 0:
            self._forget_eviction(block)
        block.ref_cnt += 1
        self._dirty.add(block.block_id)

    def register(self, block: Block, block_hash: bytes, depth: int) -> Block:
        """The block is full. Returns the block to use: another one that has the same content."""
        assert block.block_hash is None
        existing = self.cached.get(block_hash)
        if existing is not None:
            self.release(block)
            self.share(existing)
            return existing
        block.block_hash, block.depth = block_hash, depth
        self.cached[block_hash] = block
        self.fresh.add(block.block_id)
        self._dirty.add(block.block_id)
        return block

    def release(self, block: Block) -> None:
        assert block.ref_cnt > 0
        block.ref_cnt -= 1
        self._dirty.add(block.block_id)
        if block.ref_cnt > 0:
            return
        if block.block_hash is None:
            self._put_in_front(block)
        else:
            self.fresh.discard(block.block_id)
            block.rank = block.depth
            self._make_evictable(block)

    def set_last_access(self, block: Block, time: int) -> None:
        assert block.ref_cnt > 0
        if block.last_access != time:
            block.last_access = time
            self._dirty.add(block.block_id)

    def end_step(self) -> None:
        """What was registered is computed from now on."""
        self.fresh.clear()

    def forget_all(self) -> None:
        """No hash, and the free list as new. No block may be in use."""
        assert self.num_free == len(self.blocks)
        self.blocks = [Block(block_id) for block_id in range(len(self.blocks))]
        self._free = deque(self.blocks)
        self._evictions = []
        self.num_evictable = 0
        self.cached.clear()
        self.fresh.clear()
        self._dirty.update(range(len(self.blocks)))

    def rows(self, block_ids: Iterable[int]) -> list[BlockRow]:
        return [
            BlockRow(b.block_id, b.ref_cnt, b.block_hash, b.last_access, b.rank)
            for b in map(self.blocks.__getitem__, block_ids)
        ]

    def touched_block_ids(self) -> list[int]:
        rows = self.rows(range(len(self.blocks)))
        return [row.block_id for row in rows if not row.is_as_new]

    def restore(self, rows: Iterable[BlockRow]) -> None:
        """Fill a new pool. The depth of blocks in use is for their users to tell."""
        for row in rows:
            block = self.blocks[row.block_id]
            block.ref_cnt, block.block_hash = row.ref_cnt, row.block_hash
            block.last_access, block.rank = row.registration, row.rank
            if row.block_hash is None:
                continue
            self.cached[row.block_hash] = block
            if row.rank is not None:
                block.depth = row.rank
                self._make_evictable(block)
        free = [block for block in self.blocks if block.ref_cnt == 0 and block.block_hash is None]
        self._free = deque(sorted(free, key=_free_list_place))

    def _put_in_front(self, block: Block) -> None:
        block.last_access = NEVER_ACCESSED
        block.rank = _free_list_place(self._free[0]) - 1 if self._free else block.block_id
        self._free.appendleft(block)

    def _make_evictable(self, block: Block) -> None:
        block.eviction = (block.last_access, -block.depth, block.block_id)
        self.num_evictable += 1
        heappush(self._evictions, block.eviction)
        if len(self._evictions) > 2 * self.num_evictable + MIN_STALE_ENTRIES:
            self._evictions = [b.eviction for b in self.cached.values() if b.eviction is not None]
            heapify(self._evictions)

    def _forget_eviction(self, block: Block) -> None:
        """It is in use again, and its access is not known until it is given up."""
        block.eviction = block.rank = None
        block.last_access = NEVER_ACCESSED
        self.num_evictable -= 1

    def _evict(self) -> Block:
        while True:
            entry = heappop(self._evictions)
            block = self.blocks[entry[2]]
            if block.eviction == entry:
                break
        assert block.block_hash is not None
        del self.cached[block.block_hash]
        self._forget_eviction(block)
        block.block_hash = None
        block.depth = 0
        return block


def _free_list_place(block: Block) -> int:
    assert block.rank is not None
    return block.rank
