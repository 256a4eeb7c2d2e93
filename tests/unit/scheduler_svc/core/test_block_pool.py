"""The free list's order decides what stays cached, so it is held to its rules by random use."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scheduler_svc.core.block_pool import BlockPool, KVCacheBlock
from scheduler_svc.core.journal import Journal

NUM_BLOCKS = 9
HASHES = st.sampled_from([b"a", b"b", b"c"])


def order(pool: BlockPool) -> list[int]:
    return [block.block_id for block in pool.free_queue.in_order()]


def test_first_allocation_begins_at_block_1() -> None:
    """Block 0 is the null block."""
    pool = BlockPool(5, Journal())
    assert [block.block_id for block in pool.allocate(2)] == [1, 2]
    assert order(pool) == [3, 4]


def test_freed_blocks_without_hash_are_reused_first_and_cached_ones_last() -> None:
    pool = BlockPool(6, Journal())
    blocks = pool.allocate(4)
    pool.register(blocks[0], b"a")
    pool.register(blocks[1], b"b")
    pool.release(reversed(blocks))
    assert order(pool) == [4, 3, 5, 2, 1]


def test_a_hit_takes_a_free_block_from_the_middle() -> None:
    pool = BlockPool(6, Journal())
    blocks = pool.allocate(2)
    pool.register(blocks[0], b"a")
    pool.release(blocks)
    found = pool.lookup(b"a")
    assert found is not None
    assert found is blocks[0]
    pool.touch([found])
    assert order(pool) == [2, 3, 4, 5]
    assert found.ref_cnt == 1


def test_of_several_blocks_with_one_hash_the_first_registered_is_found() -> None:
    """Which one is found decides block ids, so it has to survive a restore (H32)."""
    pool = BlockPool(6, Journal())
    blocks = pool.allocate(3)
    for block in (blocks[2], blocks[0], blocks[1]):
        pool.register(block, b"a")
    restored = BlockPool(6, Journal())
    restored.restore(pool.rows(range(1, 6)))
    for copy in (pool, restored):
        assert copy.lookup(b"a") is copy.blocks[3]
        copy.unregister(copy.blocks[3])
        assert copy.lookup(b"a") is copy.blocks[1]


def test_reset_keeps_the_order_and_needs_all_blocks_free() -> None:
    pool = BlockPool(5, Journal())
    blocks = pool.allocate(2)
    pool.register(blocks[0], b"a")
    assert not pool.reset()
    assert pool.lookup(b"a") is not None
    pool.release(blocks)
    before = order(pool)
    assert pool.reset()
    assert pool.num_cached_hashes == 0
    assert order(pool) == before


def test_forget_all_leaves_nothing_to_store() -> None:
    """A generation that begins writes no block rows."""
    journal = Journal()
    pool = BlockPool(5, journal)
    blocks = pool.allocate(3)
    pool.register(blocks[1], b"a")
    pool.release(blocks)
    journal.blocks.clear()
    pool.forget_all()
    assert order(pool) == [1, 2, 3, 4]
    assert pool.touched_block_ids() == []
    assert journal.blocks >= {1, 2, 3}


class PoolMachine(RuleBasedStateMachine):
    """Tables as requests would have them, against the pool's own books."""

    def __init__(self) -> None:
        super().__init__()
        self.journal = Journal()
        self.pool = BlockPool(NUM_BLOCKS, self.journal)
        self.tables: list[list[KVCacheBlock]] = []
        self.stored = {row.block_id: row for row in self.pool.rows(range(1, NUM_BLOCKS))}

    @rule(num=st.integers(1, 3))
    def allocate(self, num: int) -> None:
        if num <= self.pool.num_free_blocks:
            expected = order(self.pool)[:num]
            blocks = self.pool.allocate(num)
            assert [block.block_id for block in blocks] == expected
            assert all(block.block_hash is None for block in blocks)
            self.tables.append(blocks)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        before = order(self.pool)
        self.pool.release(reversed(table))
        freed = [block for block in reversed(table) if block.ref_cnt == 0]
        front = [block.block_id for block in freed if block.block_hash is None]
        end = [block.block_id for block in freed if block.block_hash is not None]
        assert order(self.pool) == [*front, *before, *end]

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), block_hash=HASHES)
    def register(self, data: st.DataObject, block_hash: bytes) -> None:
        table = data.draw(st.sampled_from(self.tables))
        block = data.draw(st.sampled_from(table))
        if block.block_hash is None:
            self.pool.register(block, block_hash)

    @rule(block_hash=HASHES)
    def hit(self, block_hash: bytes) -> None:
        block = self.pool.lookup(block_hash)
        if block is not None:
            self.pool.touch([block])
            self.tables.append([block])

    @rule()
    def reset(self) -> None:
        assert self.pool.reset() == (not self.tables)

    @invariant()
    def references_are_those_of_the_tables(self) -> None:
        for block in self.pool.blocks[1:]:
            held = sum(table.count(block) for table in self.tables)
            assert block.ref_cnt == held
            assert (block.rank is None) == (held > 0)
        assert len(order(self.pool)) == self.pool.num_free_blocks

    @invariant()
    def hashes_find_the_first_registered(self) -> None:
        by_hash: dict[bytes, list[KVCacheBlock]] = {}
        for block in sorted(self.pool.blocks, key=lambda block: block.registration):
            if block.block_hash is not None:
                by_hash.setdefault(block.block_hash, []).append(block)
        assert self.pool.num_cached_hashes == len(by_hash)
        for block_hash, blocks in by_hash.items():
            assert self.pool.lookup(block_hash) is blocks[0]

    @invariant()
    def rows_noted_in_the_journal_rebuild_it(self) -> None:
        """I10 for blocks: only noted blocks are stored again, and that is enough."""
        for row in self.pool.rows(self.journal.blocks):
            self.stored[row.block_id] = row
        self.journal.blocks.clear()
        restored = BlockPool(NUM_BLOCKS, Journal())
        restored.restore(row for row in self.stored.values() if not row.is_as_new)
        assert restored.rows(range(1, NUM_BLOCKS)) == self.pool.rows(range(1, NUM_BLOCKS))
        assert order(restored) == order(self.pool)
        for block_hash in (b"a", b"b", b"c"):
            ours, theirs = self.pool.lookup(block_hash), restored.lookup(block_hash)
            assert (ours and ours.block_id) == (theirs and theirs.block_id)


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
