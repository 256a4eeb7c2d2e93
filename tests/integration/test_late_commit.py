"""Commits that arrive late, or whose answer is lost, on a real Redis behind a proxy (H12)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis import Redis

from scheduler_svc.core.rows import Commit, CommitId, Delta
from scheduler_svc.store import redis_connection, redis_store
from scheduler_svc.store.redis_store import RedisStore, open_store
from scheduler_svc.store.state_store import (
    LeaseAcquired,
    LeaseCandidate,
    Outcome,
    StoreUnavailable,
)
from tests.redis_process import RedisProcess, redis_binary, valkey_binary
from tests.store_bench import REQUESTS, TTL_MS, make_commit, some_rows
from tests.tcp_proxy import TcpProxy

pytestmark = pytest.mark.redis


@pytest.fixture
async def redis() -> AsyncIterator[RedisProcess]:
    binary = redis_binary() or valkey_binary()
    if binary is None:
        pytest.skip("no redis server here")
    process = RedisProcess(binary).start()
    yield process
    process.stop()


@pytest.fixture
async def proxy(redis: RedisProcess) -> AsyncIterator[TcpProxy]:
    proxy = await TcpProxy(unix_path=redis.socket_path).start()
    yield proxy
    await proxy.stop()


async def open_leader(url: str) -> RedisStore:
    """Leader A with one commit made."""
    store = open_store(url, "t")
    acquired = await store.acquire(LeaseCandidate("s0", "A", "s0:1", TTL_MS))
    assert acquired == LeaseAcquired(1, None)
    assert (await store.commit(make_commit(1, some_rows()), TTL_MS)).outcome is Outcome.APPLIED
    return store


async def test_commit_held_back_until_the_successor_has_committed(
    redis: RedisProcess, proxy: TcpProxy
) -> None:
    """The late commit is fenced, and the rows are the successor's."""
    old = await open_leader(f"redis://127.0.0.1:{proxy.port}")
    proxy.hold_requests()
    late = make_commit(2, Delta(fields={REQUESTS: {"r0": b"of the old leader"}}))
    sent = asyncio.create_task(old.commit(late, TTL_MS))
    await proxy.held.wait()

    new = open_store(redis.url, "t")
    assert isinstance(await new.acquire(LeaseCandidate("s0", "B", "s0:2", TTL_MS)), LeaseAcquired)
    delta = Delta(fields={REQUESTS: {"r0": b"of the new leader"}})
    commit = Commit(CommitId(2, "B", 1), late.previous, delta, 0)
    assert (await new.commit(commit, TTL_MS)).outcome is Outcome.APPLIED
    before = await new.load()

    proxy.release()
    answer = await sent
    assert (answer.outcome, answer.epoch, answer.leader_id) == (Outcome.FENCED, 2, "B")
    assert await new.load() == before
    await old.close()
    await new.close()


async def test_commit_whose_answer_was_cut_is_a_duplicate(
    redis: RedisProcess, proxy: TcpProxy
) -> None:
    """The script ran, and nobody heard of it: the same commit again finds it done."""
    store = await open_leader(f"redis://127.0.0.1:{proxy.port}")
    proxy.hold_replies()
    commit = make_commit(2, Delta(fields={REQUESTS: {"r1": b"new"}}))
    sent = asyncio.create_task(store.commit(commit, TTL_MS))
    await proxy.held.wait()
    proxy.cut()
    with pytest.raises(StoreUnavailable):
        await sent
    assert (await store.commit(commit, TTL_MS)).outcome is Outcome.DUPLICATE
    assert (await store.load()).rows.hashes[REQUESTS]["r1"] == b"new"
    await store.close()


async def test_commit_that_times_out_is_unknown_and_sent_again(
    redis: RedisProcess, proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first try is still on its way when the second is applied; it then changes nothing."""
    monkeypatch.setattr(redis_connection, "SOCKET_TIMEOUT_S", 0.2)
    store = await open_leader(f"redis://127.0.0.1:{proxy.port}")
    direct = await open_second_way(redis)
    proxy.hold_requests()
    commit = make_commit(2, Delta(fields={REQUESTS: {"r1": b"new"}}))
    with pytest.raises(StoreUnavailable):
        await store.commit(commit, TTL_MS)
    assert (await direct.commit(commit, TTL_MS)).outcome is Outcome.APPLIED
    proxy.release()
    assert (await store.commit(commit, TTL_MS)).outcome is Outcome.DUPLICATE
    assert (await store.commit(make_commit(3), TTL_MS)).outcome is Outcome.APPLIED
    await store.close()
    await direct.close()


async def open_second_way(redis: RedisProcess) -> RedisStore:
    """Another connection of the same leader: the acquisition is the same one."""
    store = open_store(redis.url, "t")
    acquired = await store.acquire(LeaseCandidate("s0", "A", "s0:1", TTL_MS))
    assert isinstance(acquired, LeaseAcquired)
    assert acquired.epoch == 1
    return store


async def test_server_that_is_gone_is_unavailable(redis: RedisProcess, proxy: TcpProxy) -> None:
    store = await open_leader(redis.url)
    redis.kill()
    with pytest.raises(StoreUnavailable):
        await store.commit(make_commit(2), TTL_MS)
    redis.start()
    assert (await store.commit(make_commit(2), TTL_MS)).outcome is Outcome.LOST
    await store.close()


async def test_replica_is_unavailable_for_commits(redis: RedisProcess, proxy: TcpProxy) -> None:
    """READONLY after a failover: the same commit again, until a master answers."""
    store = await open_leader(redis.url)
    client = Redis.from_url(redis.url)
    client.execute_command("REPLICAOF", "127.0.0.1", "1")
    with pytest.raises(StoreUnavailable, match=r"(?i)read.?only|masterdown"):
        await store.commit(make_commit(2), TTL_MS)
    client.execute_command("REPLICAOF", "NO", "ONE")
    assert (await store.commit(make_commit(2), TTL_MS)).outcome is Outcome.APPLIED
    client.close()
    await store.close()


async def test_killed_server_comes_back_with_its_commits() -> None:
    """kill -9 loses what is not written; an acknowledged commit was, if the AOF is on (H16)."""
    binary = redis_binary() or valkey_binary()
    if binary is None:
        pytest.skip("no redis server here")
    options = ("--appendonly", "yes", "--appendfsync", "everysec", "--save", "")
    process = RedisProcess(binary, *options).start()
    store = await open_leader(process.url)
    commit = make_commit(2, Delta(fields={REQUESTS: {"r1": b"new"}}))
    assert (await store.commit(commit, TTL_MS)).outcome is Outcome.APPLIED
    process.kill()
    with pytest.raises(StoreUnavailable):
        await store.commit(make_commit(3), TTL_MS)
    process.start()
    assert (await store.commit(commit, TTL_MS)).outcome is Outcome.DUPLICATE
    loaded = await store.load()
    assert (loaded.last_commit, loaded.is_torn) == (commit.id, False)
    assert loaded.rows.hashes[REQUESTS]["r1"] == b"new"
    await store.close()
    process.stop()


async def test_commit_that_no_replica_has_is_not_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`replicated`: applied here and not there is unknown, until a replica has it."""
    binary = valkey_binary()
    if binary is None:
        pytest.skip("no server with WAITAOF here")
    monkeypatch.setattr(redis_store, "WAIT_MS", 50)
    process = RedisProcess(binary, "--appendonly", "yes", "--save", "").start()
    store = open_store(process.url, "t", "replicated")
    assert any("no replica" in warning for warning in await store.check_server())
    with pytest.raises(StoreUnavailable, match="WAITAOF"):
        await store.acquire(LeaseCandidate("s0", "A", "s0:1", TTL_MS))
    with pytest.raises(StoreUnavailable, match="WAITAOF"):
        await store.commit(make_commit(1, some_rows()), TTL_MS)
    await store.close()
    alone = await open_second_way(process)
    assert (await alone.commit(make_commit(1, some_rows()), TTL_MS)).outcome is Outcome.DUPLICATE
    await alone.close()
    process.stop()
