"""All KV blocks of one executor: which are free, in what order they are reused, which have a hash.

Knows nothing about requests. Invariant: a block is in the free list exactly if its `ref_cnt` is 0
(block 0, the null block, is in neither). Freeing keeps the hash, so a block may be found again
until it is popped for reuse; that is the eviction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from scheduler_svc.core.journal import Journal


class KVCacheBlock:
    """One block. `registration` says which of several blocks with one hash was registered first.

    `rank` is its signed running number in the free list, None while it is not free.
    """

    __slots__ = ("block_hash", "block_id", "next", "prev", "rank", "ref_cnt", "registration")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_cnt = 0
        self.block_hash: bytes | None = None
        self.registration = 0
        self.rank: int | None = None
        self.prev: KVCacheBlock | None = None
        self.next: KVCacheBlock | None = None

    def __repr__(self) -> str:
        return f"KVCacheBlock({self.block_id}, ref_cnt={self.ref_cnt}, rank={self.rank})"


@dataclass(slots=True, frozen=True)
class BlockRow:
    """A block as plain values, to be stored and to be rebuilt from."""

    block_id: int
    ref_cnt: int
    block_hash: bytes | None
    registration: int
    rank: int | None

    @property
    def is_as_new(self) -> bool:
        return self.rank == self.block_id and self.block_hash is None


class BlockListener(Protocol):
    """Is told what happens to hashes. Must change nothing."""

    def block_removed(self, block_hash: bytes) -> None: ...
    def cache_cleared(self) -> None: ...


class FreeBlockList:
    """A doubly linked list, so that a block that is hit can leave the middle in O(1).

    Its order is that of the ranks: the next one at the end gets the last rank + 1, the next one in
    front the first rank - 1. An empty list begins at 0.
    """

    def __init__(self) -> None:
        self.num_blocks = 0
        self._head = KVCacheBlock(0)  # two ends that hold no block
        self._tail = KVCacheBlock(0)
        self._head.next = self._tail
        self._tail.prev = self._head

    def __iter__(self) -> Iterator[KVCacheBlock]:
        block = self._head.next
        while block is not self._tail:
            assert block is not None
            yield block
            block = block.next

    def popleft_n(self, num_blocks: int) -> list[KVCacheBlock]:
        assert num_blocks <= self.num_blocks
        popped: list[KVCacheBlock] = []
        block = self._head.next
        for _ in range(num_blocks):
            assert block is not None
            popped.append(block)
            following = block.next
            block.prev = block.next = None
            block.rank = None
            block = following
        assert block is not None
        self._link(self._head, block)
        self.num_blocks -= num_blocks
        return popped

    def remove(self, block: KVCacheBlock) -> None:
        assert block.prev is not None
        assert block.next is not None
        self._link(block.prev, block.next)
        block.prev = block.next = None
        block.rank = None
        self.num_blocks -= 1

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Put them at the end, in this order."""
        last = self._tail.prev
        assert last is not None
        rank = 0 if last.rank is None else last.rank + 1
        for block in blocks:
            block.rank = rank
            rank += 1
            self._link(last, block)
            last = block
        self._link(last, self._tail)
        self.num_blocks += len(blocks)

    def prepend_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Put them in front, as a group, in this order."""
        first = self._head.next
        assert first is not None
        rank = (0 if first.rank is None else first.rank) - len(blocks)
        last = self._head
        for block in blocks:
            block.rank = rank
            rank += 1
            self._link(last, block)
            last = block
        self._link(last, first)
        self.num_blocks += len(blocks)

    def set_ranked(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Become exactly these blocks, which are in the order of the ranks that they have."""
        last = self._head
        for block in blocks:
            assert block.rank is not None
            assert last.rank is None or last.rank < block.rank
            self._link(last, block)
            last = block
        self._link(last, self._tail)
        self.num_blocks = len(blocks)

    def _link(self, left: KVCacheBlock, right: KVCacheBlock) -> None:
        left.next = right
        right.prev = left


class BlockPool:
    """Allocates, frees and finds blocks by hash; the free-list discipline is vLLM's (spec 7.3)."""

    def __init__(
        self,
        num_blocks: int,
        *,
        journal: Journal,
        listener: BlockListener | None = None,
    ) -> None:
        assert num_blocks >= 1
        self.blocks = [KVCacheBlock(block_id) for block_id in range(num_blocks)]
        self.free_list = FreeBlockList()
        self.next_registration = 1
        self._journal = journal
        self._listener = listener
        self._first_by_hash: dict[bytes, KVCacheBlock] = {}
        self._later_by_hash: dict[bytes, list[KVCacheBlock]] = {}
        self._make_free_list_as_new()

    @property
    def num_free_blocks(self) -> int:
        return self.free_list.num_blocks

    @property
    def num_cached_hashes(self) -> int:
        return len(self._first_by_hash)

    @property
    def num_used_blocks(self) -> int:
        return len(self.blocks) - 1 - self.free_list.num_blocks

    def find(self, block_hash: bytes) -> KVCacheBlock | None:
        """The block registered first with this hash. Changes nothing."""
        return self._first_by_hash.get(block_hash)

    def allocate(self, num_blocks: int) -> list[KVCacheBlock]:
        """Take blocks from the head of the free list; one that still has a hash loses it now."""
        popped = self.free_list.popleft_n(num_blocks)
        changed = self._journal.blocks
        for block in popped:
            if block.block_hash is not None:
                self._forget_hash(block)
            assert block.ref_cnt == 0
            block.ref_cnt = 1
            changed.add(block.block_id)
        return popped

    def take_references(self, blocks: Iterable[KVCacheBlock]) -> None:
        for block in blocks:
            if block.ref_cnt == 0:
                self.free_list.remove(block)
            block.ref_cnt += 1
            self._journal.blocks.add(block.block_id)

    def free(self, block_ids: Iterable[int]) -> None:
        """Drop one reference of each. Those without a hash go in front, the others to the end."""
        to_front: list[KVCacheBlock] = []
        to_end: list[KVCacheBlock] = []
        for block_id in block_ids:
            block = self.blocks[block_id]
            assert block.ref_cnt > 0
            block.ref_cnt -= 1
            self._journal.blocks.add(block_id)
            if block.ref_cnt == 0:
                (to_front if block.block_hash is None else to_end).append(block)
        if to_front:
            self.free_list.prepend_n(to_front)
        if to_end:
            self.free_list.append_n(to_end)

    def register(self, block_id: int, block_hash: bytes) -> None:
        """From now on the block is found by this hash."""
        block = self.blocks[block_id]
        assert block.block_hash is None
        assert block.ref_cnt > 0
        block.block_hash = block_hash
        block.registration = self.next_registration
        self.next_registration += 1
        self._journal.blocks.add(block_id)
        self._index(block)

    def unregister(self, block_id: int) -> None:
        """The block holds no longer what its hash says. Its place in the free list stays."""
        block = self.blocks[block_id]
        if block.block_hash is not None:
            self._forget_hash(block)
            self._journal.blocks.add(block_id)

    def reset_hashes(self) -> bool:
        """Forget all hashes, if no block is in use; the order of the free list stays."""
        if self.num_used_blocks > 0:
            return False
        for block in self.blocks:
            if block.block_hash is not None:
                block.block_hash = None
                block.registration = 0
                self._journal.blocks.add(block.block_id)
        self._first_by_hash.clear()
        self._later_by_hash.clear()
        if self._listener is not None:
            self._listener.cache_cleared()
        return True

    def forget_all(self) -> None:
        """A generation ended: no references, no hashes, the free list as new (rule 4)."""
        self._journal.blocks.update(self.touched_block_ids())
        for block in self.blocks:
            block.ref_cnt = 0
            block.block_hash = None
            block.registration = 0
        self._first_by_hash.clear()
        self._later_by_hash.clear()
        self._make_free_list_as_new()
        if self._listener is not None:
            self._listener.cache_cleared()

    def touched_block_ids(self) -> list[int]:
        """Blocks that are not as new."""
        return [
            block.block_id
            for block in self.blocks[1:]
            if block.rank != block.block_id or block.block_hash is not None
        ]

    def rows(self, block_ids: Iterable[int]) -> Iterator[BlockRow]:
        for block_id in block_ids:
            block = self.blocks[block_id]
            yield BlockRow(
                block_id, block.ref_cnt, block.block_hash, block.registration, block.rank
            )

    def restore(self, rows: Iterable[BlockRow], next_registration: int) -> None:
        """Become what the rows say; blocks without a row are as new. For a pool just made."""
        for row in rows:
            block = self.blocks[row.block_id]
            block.ref_cnt = row.ref_cnt
            block.block_hash = row.block_hash
            block.registration = row.registration
            block.rank = row.rank
        self.next_registration = next_registration
        free = [(block.rank, block) for block in self.blocks if block.rank is not None]
        free.sort(key=lambda item: item[0])
        self.free_list = FreeBlockList()
        self.free_list.set_ranked([block for _, block in free])
        registered = [block for block in self.blocks if block.block_hash is not None]
        for block in sorted(registered, key=lambda block: block.registration):
            self._index(block)

    def _index(self, block: KVCacheBlock) -> None:
        assert block.block_hash is not None
        if self._first_by_hash.setdefault(block.block_hash, block) is not block:
            self._later_by_hash.setdefault(block.block_hash, []).append(block)

    def _forget_hash(self, block: KVCacheBlock) -> None:
        block_hash = block.block_hash
        assert block_hash is not None
        later = self._later_by_hash.get(block_hash)
        if self._first_by_hash[block_hash] is not block:
            assert later is not None
            later.remove(block)
        elif later:
            self._first_by_hash[block_hash] = later.pop(0)
        else:
            del self._first_by_hash[block_hash]
        if later is not None and not later:
            del self._later_by_hash[block_hash]
        block.block_hash = None
        block.registration = 0
        if self._listener is not None:
            self._listener.block_removed(block_hash)

    def _make_free_list_as_new(self) -> None:
        for block in self.blocks:
            block.rank = block.block_id if block.block_id else None
            block.prev = block.next = None
        self.free_list = FreeBlockList()
        self.free_list.set_ranked(self.blocks[1:])
