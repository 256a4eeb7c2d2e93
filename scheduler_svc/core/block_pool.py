"""The blocks of one executor: free list, reference counts, and the prefix cache by hash.

Knows nothing about requests. Invariant: a block is in the free list exactly if nobody references
it; one in the free list may still have its hash, and loses it when it is popped (lazy eviction).
The free list's order is vLLM's, since it decides what stays cached (specification 7.3).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from scheduler_svc.core.journal import Journal


class BlockRow(NamedTuple):
    """A block's state as a value. `rank` places it in the free list; None: it is in use."""

    block_id: int
    ref_cnt: int
    block_hash: bytes | None
    registration: int
    rank: int | None

    @property
    def is_as_new(self) -> bool:
        return self.rank == self.block_id and self.ref_cnt == 0 and self.block_hash is None


class KVCacheBlock:
    """`registration` tells which of several blocks with one hash was registered first."""

    __slots__ = ("block_hash", "block_id", "next", "prev", "rank", "ref_cnt", "registration")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_cnt = 0
        self.block_hash: bytes | None = None
        self.registration = 0
        self.rank: int | None = None
        self.prev: KVCacheBlock | None = None
        self.next: KVCacheBlock | None = None


class HashListener(Protocol):
    """Is told when hashes go. Must change nothing."""

    def block_removed(self, block_hash: bytes) -> None: ...
    def cache_cleared(self) -> None: ...


class FreeBlockQueue:
    """Doubly linked: a hit takes a block from the middle in O(1). Ranks follow the order."""

    def __init__(self) -> None:
        self._head = KVCacheBlock(0)
        self._tail = KVCacheBlock(0)
        self._head.next, self._tail.prev = self._tail, self._head
        self.num_free = 0

    def _insert(self, block: KVCacheBlock, before: KVCacheBlock, rank: int) -> None:
        after = before.prev
        assert after is not None
        assert block.rank is None
        after.next, block.prev, block.next, before.prev = block, after, before, block
        block.rank = rank
        self.num_free += 1

    def append(self, block: KVCacheBlock) -> None:
        last = self._tail.prev
        assert last is not None
        self._insert(block, self._tail, 1 if last.rank is None else last.rank + 1)

    def append_ranked(self, block: KVCacheBlock, rank: int) -> None:
        """Append with a rank of its own, which must be above the last one's."""
        last = self._tail.prev
        assert last is not None
        assert last.rank is None or last.rank < rank
        self._insert(block, self._tail, rank)

    def prepend(self, block: KVCacheBlock) -> None:
        first = self._head.next
        assert first is not None
        self._insert(block, first, 1 if first.rank is None else first.rank - 1)

    def remove(self, block: KVCacheBlock) -> None:
        assert block.rank is not None
        assert block.prev is not None
        assert block.next is not None
        block.prev.next, block.next.prev = block.next, block.prev
        block.prev = block.next = block.rank = None
        self.num_free -= 1

    def pop(self) -> KVCacheBlock:
        first = self._head.next
        assert first is not None
        assert first is not self._tail
        second = first.next
        assert second is not None
        self._head.next, second.prev = second, self._head
        first.prev = first.next = first.rank = None
        self.num_free -= 1
        return first

    def in_order(self) -> Iterable[KVCacheBlock]:
        block = self._head.next
        while block is not None and block is not self._tail:
            yield block
            block = block.next


class BlockPool:
    """`num_blocks` includes block 0, the null block, which is never handed out."""

    def __init__(
        self, num_blocks: int, journal: Journal, listener: HashListener | None = None
    ) -> None:
        self.blocks = [KVCacheBlock(block_id) for block_id in range(num_blocks)]
        self._listener = listener
        self._dirty = journal.blocks
        self._next_registration = 1
        self.cached: dict[bytes, list[KVCacheBlock]] = {}
        self.free_queue = FreeBlockQueue()
        for block in self.blocks[1:]:
            self.free_queue.append_ranked(block, block.block_id)

    @property
    def num_free_blocks(self) -> int:
        return self.free_queue.num_free

    @property
    def num_cached_hashes(self) -> int:
        return len(self.cached)

    def lookup(self, block_hash: bytes) -> KVCacheBlock | None:
        """The block registered first of those that have this hash."""
        blocks = self.cached.get(block_hash)
        return blocks[0] if blocks else None

    def touch(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Take a reference on each; a free one leaves the free list."""
        for block in blocks:
            if block.ref_cnt == 0:
                self.free_queue.remove(block)
            block.ref_cnt += 1
            self._dirty.add(block.block_id)

    def allocate(self, num_blocks: int) -> list[KVCacheBlock]:
        """Pop blocks from the head of the free list; a cached one is evicted."""
        assert num_blocks <= self.free_queue.num_free
        return [self.allocate_one() for _ in range(num_blocks)]

    def allocate_one(self) -> KVCacheBlock:
        block = self.free_queue.pop()
        if block.block_hash is not None:
            self.unregister(block)
        assert block.ref_cnt == 0
        block.ref_cnt = 1
        self._dirty.add(block.block_id)
        return block

    def register(self, block: KVCacheBlock, block_hash: bytes) -> None:
        """Make a full block hittable; its content is written by a step that is being planned."""
        assert block.block_hash is None
        assert block.ref_cnt > 0
        block.block_hash = block_hash
        block.registration = self._next_registration
        self._next_registration += 1
        self.cached.setdefault(block_hash, []).append(block)
        self._dirty.add(block.block_id)

    def unregister(self, block: KVCacheBlock) -> None:
        assert block.block_hash is not None
        siblings = self.cached[block.block_hash]
        siblings.remove(block)
        if not siblings:
            del self.cached[block.block_hash]
        if self._listener is not None:
            self._listener.block_removed(block.block_hash)
        block.block_hash = None
        block.registration = 0
        self._dirty.add(block.block_id)

    def release(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Drop a reference on each, in this order (specification 7.3: a table's last block first).

        Those without a hash come to the front of the free list, as a group in this order; those
        with one to its end.
        """
        without_hash: list[KVCacheBlock] = []
        for block in blocks:
            assert block.ref_cnt > 0
            block.ref_cnt -= 1
            self._dirty.add(block.block_id)
            if block.ref_cnt > 0:
                continue
            if block.block_hash is None:
                without_hash.append(block)
            else:
                self.free_queue.append(block)
        for block in reversed(without_hash):
            self.free_queue.prepend(block)

    def reset(self) -> bool:
        """Forget all hashes, keeping the free list's order; only while no block is in use."""
        if self.free_queue.num_free != len(self.blocks) - 1:
            return False
        for blocks in self.cached.values():
            for block in blocks:
                block.block_hash = None
                block.registration = 0
                self._dirty.add(block.block_id)
        self.cached.clear()
        if self._listener is not None:
            self._listener.cache_cleared()
        return True

    def forget_all(self) -> None:
        """A generation's end: no hash, and the free list as new. No block may be in use."""
        was_reset = self.reset()
        assert was_reset
        for block in list(self.free_queue.in_order()):
            self.free_queue.remove(block)
        for block in self.blocks[1:]:
            self.free_queue.append_ranked(block, block.block_id)
        self._dirty.update(range(1, len(self.blocks)))

    def rows(self, block_ids: Iterable[int]) -> list[BlockRow]:
        return [
            BlockRow(b.block_id, b.ref_cnt, b.block_hash, b.registration, b.rank)
            for b in map(self.blocks.__getitem__, block_ids)
        ]

    def touched_block_ids(self) -> list[int]:
        rows = self.rows(range(1, len(self.blocks)))
        return [row.block_id for row in rows if not row.is_as_new]

    def restore(self, rows: Iterable[BlockRow]) -> None:
        """Fill a new pool; blocks without a row are as new."""
        for row in rows:
            block = self.blocks[row.block_id]
            self.free_queue.remove(block)
            block.ref_cnt = row.ref_cnt
            block.block_hash = row.block_hash
            block.registration = row.registration
            block.rank = row.rank
        ranked = sorted(
            (block.rank, block.block_id) for block in self.blocks[1:] if block.rank is not None
        )
        self.free_queue = FreeBlockQueue()
        for rank, block_id in ranked:
            block = self.blocks[block_id]
            block.prev = block.next = block.rank = None
            self.free_queue.append_ranked(block, rank)
        hashed = [block for block in self.blocks if block.block_hash is not None]
        for block in sorted(hashed, key=lambda block: block.registration):
            assert block.block_hash is not None
            self.cached.setdefault(block.block_hash, []).append(block)
            self._next_registration = block.registration + 1
