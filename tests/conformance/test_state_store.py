"""One suite for every state store: memory, Redis and Valkey."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler_svc.core.rows import Commit, CommitId, Delta, Key, Rows, Table
from scheduler_svc.store.keys import INDEX, KIND, Kind, unlisted
from scheduler_svc.store.state_store import LeaseAcquired, LeaseCandidate, LeaseHeld, Outcome
from tests.redis_process import RedisProcess, redis_binary, valkey_binary
from tests.store_bench import (
    BLOCKS,
    LANES,
    OUTPUTS,
    REQUESTS,
    RUNNING,
    TTL_MS,
    Bench,
    lead,
    load_rows,
    make_bench,
    make_commit,
    some_rows,
)


@pytest.fixture(
    scope="module",
    params=[
        "memory",
        pytest.param("redis", marks=pytest.mark.redis),
        pytest.param("valkey", marks=pytest.mark.redis),
    ],
)
def server(request: pytest.FixtureRequest) -> Iterator[RedisProcess | None]:
    if request.param == "memory":
        yield None
        return
    binary = redis_binary() if request.param == "redis" else valkey_binary()
    if binary is None:
        pytest.skip(f"no {request.param} server here")
    process = RedisProcess(binary).start()
    yield process
    process.stop()


@pytest.fixture
async def bench(server: RedisProcess | None) -> AsyncIterator[Bench]:
    bench = make_bench(server)
    yield bench
    await bench.store.close()
    if bench.redis is not None:
        bench.redis.close()


async def test_new_store_is_empty_and_has_no_leader(bench: Bench) -> None:
    loaded = await bench.store.load()
    assert loaded.rows == Rows()
    assert loaded.last_commit is None
    assert not loaded.is_torn
    assert await bench.store.current_leader() is None


async def test_first_commit_is_applied(bench: Bench) -> None:
    await lead(bench)
    commit = make_commit(1, some_rows())
    answer = await bench.store.commit(commit, TTL_MS)
    assert answer.outcome is Outcome.APPLIED
    assert (answer.epoch, answer.leader_id, answer.last_commit) == (1, "A", commit.id)
    loaded = await bench.store.load()
    expected = Rows()
    expected.apply(some_rows())
    assert loaded.rows == expected
    assert (loaded.last_commit, loaded.now_unix_ms) == (commit.id, commit.now_unix_ms)


async def test_same_commit_again_is_a_duplicate(bench: Bench) -> None:
    await lead(bench)
    commit = make_commit(1, some_rows())
    await bench.store.commit(commit, TTL_MS)
    before = await load_rows(bench)
    answer = await bench.store.commit(commit, TTL_MS)
    assert answer.outcome is Outcome.DUPLICATE
    assert await load_rows(bench) == before


async def test_late_try_of_an_older_commit_is_lost_and_changes_nothing(bench: Bench) -> None:
    """It has been repeated and followed by another since."""
    await lead(bench)
    first = make_commit(1, some_rows())
    second = make_commit(2, Delta(fields={REQUESTS: {"r0": b"newer"}}))
    await bench.store.commit(first, TTL_MS)
    await bench.store.commit(second, TTL_MS)
    before = await load_rows(bench)
    answer = await bench.store.commit(first, TTL_MS)
    assert (answer.outcome, answer.last_commit) == (Outcome.LOST, second.id)
    assert await load_rows(bench) == before


@pytest.mark.parametrize("scheduler_id", ["s0", "s1"])
async def test_predecessor_is_fenced(bench: Bench, scheduler_id: str) -> None:
    await lead(bench)
    await bench.store.commit(make_commit(1, some_rows()), TTL_MS)
    bench.expire_lease()
    epoch = await lead(bench, "B", scheduler_id)
    answer = await bench.store.commit(make_commit(2, Delta(dropped=[REQUESTS])), TTL_MS)
    assert answer.outcome is Outcome.FENCED
    assert (answer.epoch, answer.leader_id, answer.address) == (epoch, "B", f"{scheduler_id}:1")
    assert REQUESTS in (await load_rows(bench)).hashes


async def test_same_epoch_of_another_leader_is_fenced(bench: Bench) -> None:
    """A failover can lose an acquisition: then two leaders hold one number (H10)."""
    epoch = await lead(bench, "B")
    assert epoch == 1
    answer = await bench.store.commit(make_commit(1, some_rows()), TTL_MS)
    assert (answer.outcome, answer.leader_id) == (Outcome.FENCED, "B")
    assert await load_rows(bench) == Rows()


async def test_wiped_store_is_lost_and_never_a_first_commit(bench: Bench) -> None:
    await lead(bench)
    bench.wipe()
    answer = await bench.store.commit(make_commit(1, some_rows()), TTL_MS)
    assert (answer.outcome, answer.epoch, answer.last_commit) == (Outcome.LOST, 0, None)
    assert await load_rows(bench) == Rows()
    assert await bench.store.current_leader() is None


async def test_commit_with_a_gap_is_lost(bench: Bench) -> None:
    await lead(bench)
    await bench.store.commit(make_commit(1, some_rows()), TTL_MS)
    answer = await bench.store.commit(make_commit(3, Delta(dropped=[REQUESTS])), TTL_MS)
    assert answer.outcome is Outcome.LOST
    assert REQUESTS in (await load_rows(bench)).hashes


async def test_successor_continues_the_chain(bench: Bench) -> None:
    await lead(bench)
    first = make_commit(1, some_rows())
    await bench.store.commit(first, TTL_MS)
    acquired = await bench.store.acquire(LeaseCandidate("s0", "B", "s0:2", TTL_MS))
    assert acquired == LeaseAcquired(2, first.id)
    commit = Commit(CommitId(2, "B", 1), first.id, Delta(), 0)
    assert (await bench.store.commit(commit, TTL_MS)).outcome is Outcome.APPLIED


async def test_torn_commit_shows_and_is_repaired_by_sending_it_again(bench: Bench) -> None:
    await lead(bench)
    await bench.store.commit(make_commit(1, some_rows()), TTL_MS)
    whole = Delta(
        dropped=[OUTPUTS],
        fields={REQUESTS: {"r0": b"new", "r1": b"new"}},
        ranks={RUNNING: {"r1": 4}},
        outputs={OUTPUTS.owner: (0, b"abcd")},
    )
    commit = make_commit(2, whole)
    bench.tear(commit, Delta(fields={REQUESTS: {"r0": b"new"}}))
    torn = await bench.store.load()
    assert torn.is_torn
    assert torn.last_commit == commit.previous
    assert (await bench.store.commit(commit, TTL_MS)).outcome is Outcome.APPLIED
    loaded = await bench.store.load()
    expected = Rows()
    expected.apply(some_rows())
    expected.apply(whole)
    assert loaded.rows == expected
    assert not loaded.is_torn


async def test_empty_commit_renews_the_lease(bench: Bench) -> None:
    await lead(bench)
    bench.expire_lease()
    answer = await bench.store.commit(make_commit(1), TTL_MS)
    assert answer.outcome is Outcome.APPLIED
    held = await bench.store.acquire(LeaseCandidate("s1", "B", "s1:1", TTL_MS))
    assert isinstance(held, LeaseHeld)
    assert (held.scheduler_id, held.address, held.epoch, held.leader_id) == ("s0", "s0:1", 1, "A")
    assert 0 < held.expires_in_ms <= TTL_MS


async def test_lease_is_taken_at_once_by_its_owner_and_by_others_at_its_end(bench: Bench) -> None:
    assert await lead(bench, "A", "s0") == 1
    assert await lead(bench, "B", "s0") == 2
    held = await bench.store.acquire(LeaseCandidate("s1", "C", "s1:1", TTL_MS))
    assert isinstance(held, LeaseHeld)
    bench.expire_lease()
    assert await lead(bench, "C", "s1") == 3


async def test_repeated_acquire_is_the_same_acquisition(bench: Bench) -> None:
    assert await lead(bench, "A") == 1
    assert await lead(bench, "A") == 1


async def test_acquire_is_above_what_peers_have_seen(bench: Bench) -> None:
    assert await lead(bench, "A", above=57) == 58
    assert await lead(bench, "B", above=3) == 59


async def test_released_lease_is_free_and_still_fences(bench: Bench) -> None:
    await lead(bench, "A")
    await bench.store.release(1, "B")
    held = await bench.store.acquire(LeaseCandidate("s1", "B", "s1:1", TTL_MS))
    assert isinstance(held, LeaseHeld)
    await bench.store.release(1, "A")
    leader = await bench.store.current_leader()
    assert leader is not None
    assert leader.expires_in_ms == 0
    assert await lead(bench, "B", "s1") == 2


async def test_owner_raises_its_epoch(bench: Bench) -> None:
    await lead(bench)
    first = make_commit(1, some_rows())
    await bench.store.commit(first, TTL_MS)
    assert await bench.store.raise_epoch(1, "A", 57) == 58
    assert await bench.store.raise_epoch(1, "A", 57) == 58  # the first answer was lost
    assert (await bench.store.commit(make_commit(2), TTL_MS)).outcome is Outcome.FENCED
    raised = make_commit(2, previous=first.id, epoch=58)
    assert (await bench.store.commit(raised, TTL_MS)).outcome is Outcome.APPLIED


async def test_nobody_else_raises_the_epoch(bench: Bench) -> None:
    await lead(bench, "A")
    await lead(bench, "B")
    assert await bench.store.raise_epoch(1, "A", 57) is None
    assert await bench.store.raise_epoch(2, "B", 1) == 3


async def test_rows_of_unlisted_owners_are_not_loaded(bench: Bench) -> None:
    await lead(bench)
    await bench.store.commit(make_commit(1, Delta(fields={BLOCKS: {"1": b"x"}})), TTL_MS)
    assert await load_rows(bench) == Rows()


async def test_more_fields_than_lua_unpacks(bench: Bench) -> None:
    await lead(bench)
    blocks = {str(i): str(i).encode() for i in range(20_000)}
    free = {str(i): i for i in range(20_000)}
    free_key = Key(Table.LANE_FREE, "e0")
    delta = Delta(fields={LANES: {"e0": b"{}"}, BLOCKS: blocks}, ranks={free_key: free})
    await bench.store.commit(make_commit(1, delta), TTL_MS)
    loaded = await load_rows(bench)
    assert (loaded.hashes[BLOCKS], loaded.ranks[free_key]) == (blocks, free)
    gone = Delta(
        removed_fields={BLOCKS: list(blocks)[1:]}, removed_ranks={free_key: list(free)[1:]}
    )
    await bench.store.commit(make_commit(2, gone), TTL_MS)
    loaded = await load_rows(bench)
    assert (loaded.hashes[BLOCKS], loaded.ranks[free_key]) == ({"0": b"0"}, {"0": 0})


async def test_ten_thousand_requests_are_loaded(bench: Bench) -> None:
    ids = [f"cmpl-{i:08d}" for i in range(10_000)]
    delta = Delta(
        fields={
            REQUESTS: {name: b"RUNNING|e0|" + name.encode() for name in ids},
            Key(Table.LOGPROBS, ids[7]): {"0": b"x"},
        },
        outputs={name: (0, name.encode() * 4) for name in ids},
    )
    await lead(bench)
    assert (await bench.store.commit(make_commit(1, delta), TTL_MS)).outcome is Outcome.APPLIED
    expected = Rows()
    expected.apply(delta)
    assert await load_rows(bench) == expected


def names() -> st.SearchStrategy[str]:
    return st.sampled_from(["a", "b", "ü:{}", "7"])


def keys_of(kind: Kind) -> st.SearchStrategy[Key]:
    def with_owner(table: Table) -> st.SearchStrategy[Key]:
        return st.builds(Key, st.just(table), names() if table in INDEX else st.just(""))

    return st.sampled_from([t for t in Table if KIND[t] is kind]).flatmap(with_owner)


def deltas() -> st.SearchStrategy[Delta]:
    every = st.one_of(*map(keys_of, Kind))
    members = st.lists(names(), min_size=1, max_size=3)
    values = st.dictionaries(names(), st.binary(max_size=12), min_size=1, max_size=3)
    ranks = st.dictionaries(names(), st.integers(-(2**53), 2**53), min_size=1, max_size=3)
    write = st.tuples(st.integers(0, 40), st.binary(min_size=1, max_size=20))
    return st.builds(
        Delta,
        dropped=st.lists(every, max_size=2),
        removed_fields=st.dictionaries(keys_of(Kind.HASH), members, max_size=2),
        removed_ranks=st.dictionaries(keys_of(Kind.RANKS), members, max_size=2),
        fields=st.dictionaries(keys_of(Kind.HASH), values, max_size=4),
        ranks=st.dictionaries(keys_of(Kind.RANKS), ranks, max_size=4),
        outputs=st.dictionaries(names(), write, max_size=3),
    )


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(chain=st.lists(deltas(), min_size=1, max_size=5))
def test_store_holds_what_the_deltas_add_up_to(
    server: RedisProcess | None, chain: list[Delta]
) -> None:
    """Each delta is applied twice: every operation is absolute (H15)."""

    async def run() -> Rows:
        bench = make_bench(server)
        await lead(bench)
        for seq, delta in enumerate(chain, 1):
            commit = make_commit(seq, delta)
            bench.tear(commit, Delta())
            await bench.store.commit(commit, TTL_MS)
        rows = await load_rows(bench)
        await bench.store.close()
        if bench.redis is not None:
            bench.redis.close()
        return rows

    expected = Rows()
    for delta in chain:
        expected.apply(delta)
        expected.apply(delta)
    for key in unlisted(expected):
        for tables in (expected.hashes, expected.ranks, expected.strings):
            tables.pop(key, None)
    assert asyncio.run(run()) == expected
