"""What only a Redis store can get wrong: types, scripts, keys, and unsuitable servers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import msgpack
import pytest
from redis.exceptions import ResponseError

from scheduler_svc.core.rows import Delta
from scheduler_svc.store.keys import StoreKeys
from scheduler_svc.store.redis_connection import Script
from scheduler_svc.store.redis_store import open_store
from scheduler_svc.store.state_store import Outcome, StoreCorrupt, StoreUnsuitable
from tests.redis_process import RedisProcess, redis_binary, valkey_binary
from tests.store_bench import (
    OUTPUTS,
    REQUESTS,
    RUNNING,
    TTL_MS,
    Bench,
    lead,
    make_bench,
    make_commit,
    some_rows,
)

pytestmark = pytest.mark.redis


@pytest.fixture(scope="module", params=["redis", "valkey"])
def server(request: pytest.FixtureRequest) -> Iterator[RedisProcess]:
    binary = redis_binary() if request.param == "redis" else valkey_binary()
    if binary is None:
        pytest.skip(f"no {request.param} server here")
    process = RedisProcess(binary).start()
    yield process
    process.stop()


@pytest.fixture
async def bench(server: RedisProcess) -> AsyncIterator[Bench]:
    bench = make_bench(server)
    yield bench
    await bench.store.close()
    if bench.redis is not None:
        bench.redis.close()


async def test_wrong_type_is_refused_before_any_write(bench: Bench) -> None:
    """A script is no transaction: what it wrote before an error would stay (H15)."""
    assert bench.redis is not None
    await lead(bench)
    await bench.store.commit(make_commit(1, some_rows()), TTL_MS)
    name = StoreKeys("t").row("n1", RUNNING)
    bench.redis.delete(name)
    bench.redis.set(name, b"not a sorted set")
    before = bench.redis.hgetall(StoreKeys("t").meta)
    delta = Delta(fields={REQUESTS: {"r9": b"x"}}, ranks={RUNNING: {"r9": 1}})
    with pytest.raises(StoreCorrupt):
        await bench.store.commit(make_commit(2, delta), TTL_MS)
    assert bench.redis.hgetall(StoreKeys("t").meta) == before
    assert not bench.redis.hexists(StoreKeys("t").row("n1", REQUESTS), "r9")


async def test_all_keys_are_in_one_slot_and_never_expire(bench: Bench) -> None:
    assert bench.redis is not None
    await lead(bench)
    await bench.store.commit(make_commit(1, some_rows()), TTL_MS)
    names = [name.decode() for name in bench.redis.scan_iter()]
    assert len(names) == 7
    assert all(name.startswith("{segue:t}:") for name in names)
    assert all(bench.redis.ttl(name) == -1 for name in names)


async def test_scripts_survive_a_flush(bench: Bench) -> None:
    """A restarted or failed-over server does not know the scripts (NOSCRIPT)."""
    assert bench.redis is not None
    await lead(bench)
    await bench.store.commit(make_commit(1, some_rows()), TTL_MS)
    bench.redis.script_flush()
    assert (await bench.store.commit(make_commit(2), TTL_MS)).outcome is Outcome.APPLIED


async def test_server_that_evicts_is_unsuitable(bench: Bench) -> None:
    assert bench.redis is not None
    bench.redis.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(StoreUnsuitable, match="noeviction"):
            await bench.store.check_server()
    finally:
        bench.redis.config_set("maxmemory-policy", "noeviction")
    assert any("AOF" in warning for warning in await bench.store.check_server())


@pytest.mark.parametrize("durability", ["always", "replicated"])
async def test_durability_without_an_aof_is_refused(bench: Bench, durability: str) -> None:
    assert bench.redis is not None
    store = open_store(bench.url, "t", durability)
    with pytest.raises(StoreUnsuitable, match="appendonly"):
        await store.check_server()
    await store.close()


async def test_string_of_another_type_shows_as_torn_and_is_repaired(bench: Bench) -> None:
    """The types of strings are not looked up first; the chain says that the commit is not done."""
    assert bench.redis is not None
    await lead(bench)
    await bench.store.commit(make_commit(1, some_rows()), TTL_MS)
    name = StoreKeys("t").row("n1", OUTPUTS)
    bench.redis.delete(name)
    bench.redis.hset(name, "not", "a string")
    commit = make_commit(
        2, Delta(fields={REQUESTS: {"r9": b"x"}}, outputs={OUTPUTS.owner: (0, b"abcd")})
    )
    with pytest.raises(StoreCorrupt):
        await bench.store.commit(commit, TTL_MS)
    bench.redis.delete(name)
    assert (await bench.store.load()).is_torn
    assert (await bench.store.commit(commit, TTL_MS)).outcome is Outcome.APPLIED
    loaded = await bench.store.load()
    assert not loaded.is_torn
    assert loaded.rows.strings[OUTPUTS] == b"abcd"


@pytest.mark.parametrize(
    "groups, arguments",
    [
        (["FLUSHALL", 2, 1, 1], ["x"]),
        (["HSET", 1, 1, 2], ["epoch", "0"]),  # the fence is nobody's row
        (["HSET", 3, 1, 2], ["f", "v"]),  # there is no third key
        (["HSET", 2, 1, 1], ["f"]),
        (["HSET", 2, 1, 4], ["f", "v"]),
        (["HSET", 2, 1, 2], ["f", "v", "left over"]),
        (["ZADD", 2, 1, 2], ["1", "rank is text"]),
        (["SETRANGE", 2, 1, 2], ["0", b"offset is text"]),
    ],
)
async def test_malformed_operations_are_refused_before_any_write(
    bench: Bench, groups: list[str | int], arguments: list[str | bytes | int]
) -> None:
    assert bench.redis is not None
    await lead(bench)
    keys = StoreKeys("t")
    before = bench.redis.hgetall(keys.meta)
    operations = msgpack.packb([groups, arguments], use_bin_type=False)
    tail = ("A", "s0", "s0:1", "1:1:A", "", TTL_MS, 0, "", "n1", operations)
    with pytest.raises(ResponseError, match="SEGUE"):
        bench.redis.execute_command(
            "EVAL", Script("commit").text, 2, keys.meta, "{segue:t}:n1:x", 1, *tail
        )
    assert bench.redis.hgetall(keys.meta) == before
    assert not bench.redis.exists("{segue:t}:n1:x")


async def test_rows_are_where_meta_says(bench: Bench) -> None:
    """So a whole state can be written beside the old one, and be switched to in one script."""
    assert bench.redis is not None
    keys = StoreKeys("t")
    await lead(bench)
    await bench.store.commit(make_commit(1, some_rows()), TTL_MS)
    bench.redis.hset(keys.row("n2", REQUESTS), "r7", b"of n2")
    bench.redis.hset(keys.meta, "namespace", "n2")
    with pytest.raises(StoreCorrupt, match="namespace"):
        await bench.store.commit(make_commit(2, Delta(dropped=[REQUESTS])), TTL_MS)
    assert (await bench.store.load()).rows.hashes == {REQUESTS: {"r7": b"of n2"}}
    delta = Delta(fields={REQUESTS: {"r8": b"x"}})
    assert (await bench.store.commit(make_commit(2, delta), TTL_MS)).outcome is Outcome.APPLIED
    assert bench.redis.hexists(keys.row("n2", REQUESTS), "r8")
    assert not bench.redis.hexists(keys.row("n1", REQUESTS), "r8")
