"""A state store with ways around it, for the tests of every store.

Knows how to wipe, tear and expire each kind; asserts nothing about outcomes.
"""

from __future__ import annotations

from dataclasses import dataclass

from redis import Redis

from scheduler_svc.core.rows import Commit, CommitId, Delta, Key, Rows, Table
from scheduler_svc.store.commit_encoding import commit_id_text
from scheduler_svc.store.keys import StoreKeys
from scheduler_svc.store.memory_store import MemoryState, MemoryStore
from scheduler_svc.store.redis_store import open_store
from scheduler_svc.store.state_store import LeaseAcquired, LeaseCandidate, StateStore
from tests.redis_process import RedisProcess

TTL_MS = 60_000
LANES, REQUESTS = Key(Table.LANES), Key(Table.REQUESTS)
RUNNING, BLOCKS = Key(Table.LANE_RUNNING, "e0"), Key(Table.LANE_BLOCKS, "e0")
OUTPUTS = Key(Table.OUTPUTS, "r0")


@dataclass(slots=True)
class Bench:
    """A store, and the ways around it that a test needs."""

    store: StateStore
    state: MemoryState | None = None
    redis: Redis | None = None
    url: str = ""

    def wipe(self) -> None:
        if self.state is not None:
            self.state.wipe()
        if self.redis is not None:
            self.redis.flushall()

    def expire_lease(self) -> None:
        """As if the lease's time had passed."""
        if self.state is not None:
            assert self.state.meta is not None
            self.state.release(self.state.meta.epoch, self.state.meta.leader_id)
        if self.redis is not None:
            self.redis.hset(StoreKeys("t").meta, "lease_until_ms", 1)

    def tear(self, commit: Commit, part: Delta) -> None:
        """As if the commit had stopped half-way: begun is written, and `part` of the rows."""
        if self.state is not None:
            self.state.tear(commit, part)
        if self.redis is not None:
            keys = StoreKeys("t")
            self.redis.hset(keys.meta, "begun", commit_id_text(commit.id))
            for key, fields in part.fields.items():
                for name, value in fields.items():
                    self.redis.hset(keys.row("n1", key), name, value)


def make_bench(server: RedisProcess | None) -> Bench:
    if server is None:
        now_ms = iter(range(1_000_000, 100_000_000))
        state = MemoryState(lambda: next(now_ms))
        return Bench(MemoryStore(state), state=state)
    redis = Redis.from_url(server.url)
    redis.flushall()
    return Bench(open_store(server.url, "t"), redis=redis, url=server.url)


async def lead(bench: Bench, leader_id: str = "A", scheduler_id: str = "s0", above: int = 0) -> int:
    candidate = LeaseCandidate(scheduler_id, leader_id, f"{scheduler_id}:1", TTL_MS, above)
    acquired = await bench.store.acquire(candidate)
    assert isinstance(acquired, LeaseAcquired)
    return acquired.epoch


def make_commit(
    seq: int, delta: Delta | None = None, *, previous: CommitId | None = None, epoch: int = 1
) -> Commit:
    commit_id = CommitId(epoch, "A", seq)
    if previous is None and seq > 1:
        previous = CommitId(epoch, "A", seq - 1)
    return Commit(commit_id, previous, delta or Delta(), 1_700_000_000_000 + seq)


def some_rows() -> Delta:
    return Delta(
        fields={LANES: {"e0": b"{}"}, REQUESTS: {"r0": b"RUNNING|e0"}, BLOCKS: {"7": b"1|2|ff"}},
        ranks={RUNNING: {"r0": -3}, Key(Table.LANE_FREE, "e0"): {"8": 2**52 + 1}},
        outputs={OUTPUTS.owner: (0, bytes(range(8)))},
    )


async def load_rows(bench: Bench) -> Rows:
    return (await bench.store.load()).rows
