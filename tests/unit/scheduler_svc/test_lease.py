"""The campaign: at once when it is ours, after the end when it is not, and the courtesy of H14."""

from __future__ import annotations

from scheduler_svc.core.rows import Commit, CommitId, Delta
from scheduler_svc.lease import LeaseKeeper
from scheduler_svc.store.memory_store import MemoryState, MemoryStore
from scheduler_svc.store.state_store import LeaseAcquired, LeaseCandidate, LeaseHeld, Outcome

LEASE_TTL_S = 3.0


class Clock:
    """Time that passes only while somebody sleeps; `at` runs things when their time has come."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.events: list[tuple[float, object]] = []

    def now_ms(self) -> int:
        return int(self.now_s * 1000)

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        for event in [e for e in self.events if e[0] <= self.now_s]:
            self.events.remove(event)
            event[1]()  # type: ignore[operator]


def make_world() -> tuple[Clock, MemoryStore]:
    clock = Clock()
    return clock, MemoryStore(MemoryState(clock.now_ms))


def make_keeper(clock: Clock, store: MemoryStore, scheduler_id: str) -> LeaseKeeper:
    return LeaseKeeper(store, scheduler_id, f"{scheduler_id}:1", LEASE_TTL_S, sleep=clock.sleep)


def lead(store: MemoryStore, scheduler_id: str = "s0", leader_id: str = "A") -> LeaseAcquired:
    candidate = LeaseCandidate(scheduler_id, leader_id, f"{scheduler_id}:1", 3000)
    acquired = store.state.acquire(candidate)
    assert isinstance(acquired, LeaseAcquired)
    return acquired


async def test_same_scheduler_takes_its_lease_back_at_once() -> None:
    clock, store = make_world()
    lead(store, "s0")
    acquired, leader_id = await make_keeper(clock, store, "s0").campaign()
    assert clock.now_s == 1000.0
    assert acquired.epoch == 2
    assert leader_id not in ("", "A")


async def test_released_lease_is_taken_at_once() -> None:
    clock, store = make_world()
    epoch = lead(store, "s0").epoch
    store.state.release(epoch, "A")
    await make_keeper(clock, store, "s1").campaign()
    assert clock.now_s == 1000.0


async def test_standby_waits_for_the_end_and_knows_the_leader() -> None:
    clock, store = make_world()
    lead(store, "s0")
    keeper = make_keeper(clock, store, "s1")
    seen: list[str] = []
    clock.events.append((1000.5, lambda: seen.append(keeper.leader_address)))
    acquired, _ = await keeper.campaign()
    assert seen == ["s0:1"]
    assert acquired.epoch == 2
    assert clock.now_s >= 1000.0 + LEASE_TTL_S
    assert keeper.leader_address == ""


async def test_first_leader_of_all_waits_one_lease() -> None:
    """Nobody knows whether the store is new or was wiped under a living leader."""
    clock, store = make_world()
    acquired, _ = await make_keeper(clock, store, "s0").campaign()
    assert acquired.epoch == 1
    assert clock.now_s >= 1000.0 + LEASE_TTL_S


async def test_restarted_server_lets_the_old_leader_commit_first() -> None:
    """The lease ended while Redis was down; the leader lives, and commits before the standby."""
    clock, store = make_world()
    epoch = lead(store, "s0").epoch
    keeper = make_keeper(clock, store, "s1")

    def restart() -> None:
        store.run_id = "another"
        store.state.release(epoch, "A")

    outcomes: list[Outcome] = []

    def commit() -> None:
        first = Commit(CommitId(epoch, "A", 1), None, Delta(), 0)
        outcomes.append(store.state.commit(first, 3000).outcome)

    clock.events += [(1001.0, restart), (1002.5, commit)]
    await keeper.campaign()
    assert outcomes == [Outcome.APPLIED]
    assert clock.now_s >= 1002.5 + LEASE_TTL_S


async def test_young_server_gets_the_courtesy_too() -> None:
    clock, store = make_world()
    epoch = lead(store, "s0").epoch
    store.state.release(epoch, "A")
    store.uptime_ms = 10
    await make_keeper(clock, store, "s1").campaign()
    assert clock.now_s >= 1000.0 + LEASE_TTL_S


async def test_epoch_is_above_what_peers_have_seen() -> None:
    clock, store = make_world()
    keeper = make_keeper(clock, store, "s0")
    keeper.highest_epoch_seen = 57
    acquired, _ = await keeper.campaign()
    assert acquired.epoch == 58


async def test_unavailable_store_is_tried_again() -> None:
    """The acquire that went through without an answer is not a second acquisition."""
    clock, store = make_world()
    lead(store, "s0")
    store.fail_before, store.fail_after = 1, 2
    acquired, _ = await make_keeper(clock, store, "s0").campaign()
    assert acquired.epoch == 2
    assert not isinstance(acquired, LeaseHeld)


async def test_only_scheduler_of_a_deployment_starts_at_once() -> None:
    clock, store = make_world()
    keeper = LeaseKeeper(store, "s0", "s0:1", LEASE_TTL_S, has_peers=False, sleep=clock.sleep)
    started_s = clock.now_s
    await keeper.campaign()
    assert clock.now_s == started_s
