"""The store behind Sentinels: what a failover keeps, what it may lose, and that this is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from scheduler_svc.core.rows import Commit, CommitId, Delta, Key, Table
from scheduler_svc.store.redis_store import RedisStore, open_store
from scheduler_svc.store.state_store import (
    CommitAnswer,
    LeaseCandidate,
    Outcome,
    StoreUnavailable,
)
from tests.sentinel_processes import SentinelProcesses, running_sentinels

pytestmark = [pytest.mark.redis, pytest.mark.timeout(120), pytest.mark.slow]
LEASE_MS = 30_000
RETRY_S = 0.1


@pytest.fixture
def servers() -> Iterator[SentinelProcesses]:
    with running_sentinels() as running:
        yield running


@pytest.fixture
async def store(servers: SentinelProcesses) -> AsyncIterator[RedisStore]:
    opened = open_store(servers.url, "default")
    await opened.acquire(LeaseCandidate("s0", "A", "s0:1", LEASE_MS))
    yield opened
    await opened.close()


def commit_of(seq: int) -> Commit:
    previous = CommitId(1, "A", seq - 1) if seq > 1 else None
    delta = Delta(fields={Key(Table.ENGINE): {"seq": str(seq).encode()}})
    return Commit(CommitId(1, "A", seq), previous, delta, 1)


async def committed(store: RedisStore, seq: int) -> CommitAnswer:
    """As the loop does it: the same bytes until there is an outcome."""
    commit = commit_of(seq)
    while True:
        try:
            return await store.commit(commit, LEASE_MS)
        except StoreUnavailable:
            await asyncio.sleep(RETRY_S)


async def test_a_leader_goes_on_behind_a_failover(
    servers: SentinelProcesses, store: RedisStore
) -> None:
    assert (await committed(store, 1)).outcome is Outcome.APPLIED
    servers.wait_replicated()
    await asyncio.to_thread(servers.fail_over)
    assert (await committed(store, 2)).outcome is Outcome.APPLIED
    assert (await store.load()).rows.hashes[Key(Table.ENGINE)]["seq"] == b"2"


async def test_a_commit_that_no_replica_had_is_lost_and_that_is_told(
    servers: SentinelProcesses, store: RedisStore
) -> None:
    """Replication is asynchronous: the leader has an answer for commit 2, the new master has not
    got it. Commit 3 names its predecessor, so it is refused and nothing is written over."""
    assert (await committed(store, 1)).outcome is Outcome.APPLIED
    servers.wait_replicated()
    servers.cut_replica_off()
    assert (await committed(store, 2)).outcome is Outcome.APPLIED
    await asyncio.to_thread(servers.fail_over)
    answer = await committed(store, 3)
    assert answer.outcome is Outcome.LOST
    assert answer.last_commit == CommitId(1, "A", 1)
    assert (await store.load()).rows.hashes[Key(Table.ENGINE)]["seq"] == b"1"


async def test_without_a_replica_nothing_is_taken_where_one_is_asked_for(
    servers: SentinelProcesses, store: RedisStore
) -> None:
    """A primary that nobody follows may have been replaced: with this option it takes nothing."""
    assert (await committed(store, 1)).outcome is Outcome.APPLIED
    servers.client("primary").config_set("min-replicas-to-write", 1)
    servers.cut_replica_off()
    with pytest.raises(StoreUnavailable, match="NOREPLICAS"):
        await store.commit(commit_of(2), LEASE_MS)
