"""Redis as the schedulers see it: `MemoryState` behind a network, with losses and outages.

Knows nothing about rows. Invariant: an answer that does not come is `StoreUnavailable`, whether the
verb was done, is done later, or never; `num_losses` counts what was acknowledged and is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scheduler_svc.core.rows import Commit, Delta
from scheduler_svc.store.memory_store import MemoryState, Meta
from scheduler_svc.store.state_store import (
    CommitAnswer,
    LeaseAcquired,
    LeaseCandidate,
    LeaseHeld,
    LoadedState,
    StateStore,
    StoreSight,
    StoreUnavailable,
)
from tests.sim.world import Life, Pending, World

TIMEOUT_MS = 60


class SimulatedRedis:
    def __init__(self, world: World) -> None:
        self.world = world
        self.state = MemoryState(lambda: world.now)
        self.run_number = 1
        self.started_at = world.now - 100_000
        self.is_down = False
        self.trouble_at = 0  # when the last verb was not answered, or a state was lost
        self.num_losses = 0
        self.num_unknown = 0  # of the next verbs, how many end with an unknown outcome
        self.num_torn = 0  # of the next commits, how many are applied by half at first
        self.on_commit: Callable[[Commit, CommitAnswer], None] = lambda commit, answer: None
        self.on_acquired: Callable[[Meta | None], None] = lambda before: None

    def restart(self) -> None:
        self.run_number += 1
        self.started_at = self.world.now

    def lose(self, num_changes: int, *, with_restart: bool) -> None:
        """Go back to the first `num_changes` entries of the history."""
        self.num_losses += 1
        self.trouble_at = self.world.now
        self.world.note(f"redis keeps {num_changes} of {len(self.state.history)} changes")
        if num_changes == 0:
            self.state.wipe()
        else:
            self.state.roll_back(num_changes)
        if with_restart:
            self.restart()

    def call(self, life: Life, verb: Callable[[], Any]) -> Pending:
        return Pending(lambda done: self._start(life, verb, done))

    def _start(self, life: Life, verb: Callable[[], Any], done: Callable[[Any], None]) -> None:
        world, rng = self.world, self.world.rng
        error = StoreUnavailable("no answer")
        travel = rng.choice((1, 1, 2))
        if self.num_unknown:
            self.num_unknown -= 1
            self.trouble_at = world.now + 3 * TIMEOUT_MS
            fate = rng.choice(("lost", "answer lost", "late"))
            world.note(f"{life.name}: a verb of redis will be {fate}")
            if fate == "late":
                travel = rng.randrange(1, 3 * TIMEOUT_MS)
            if fate != "lost":
                world.after(travel, None, lambda: self._try(verb))
            world.after(TIMEOUT_MS, life, lambda: done(error))
            return

        def arrive() -> None:
            answer = self._try(verb)
            world.after(rng.choice((0, 1, 1, 2)), life, lambda: done(answer))

        world.after(travel, None, arrive)

    def _try(self, verb: Callable[[], Any]) -> Any:
        if self.is_down:
            self.trouble_at = self.world.now
            return StoreUnavailable("down")
        try:
            return verb()
        except StoreUnavailable as error:
            return error

    def acquire(self, candidate: LeaseCandidate) -> LeaseAcquired | LeaseHeld:
        before = self.state.meta
        answer = self.state.acquire(candidate)
        if isinstance(answer, LeaseAcquired):
            self.on_acquired(before)
        return answer

    def commit(self, commit: Commit, lease_ttl_ms: int) -> CommitAnswer:
        if self.num_torn:
            self.num_torn -= 1
            self.trouble_at = self.world.now
            self._tear(commit)
            raise StoreUnavailable("the script stopped half-way")
        answer = self.state.commit(commit, lease_ttl_ms)
        self.on_commit(commit, answer)
        return answer

    def _tear(self, commit: Commit) -> None:
        """Only if it would be applied; the same commit again repairs it."""
        meta = self.state.meta
        if meta is None or meta.done != commit.previous or meta.epoch > commit.id.epoch:
            return
        if meta.leader_id != commit.id.leader_id:
            return
        self.world.note(f"commit {commit.id} is torn")
        delta = commit.delta
        part = Delta(dropped=delta.dropped, removed_fields=delta.removed_fields)
        part.fields = dict(list(delta.fields.items())[: len(delta.fields) // 2])
        self.state.tear(commit, part)

    def sight(self) -> StoreSight:
        uptime_ms = self.world.now - self.started_at
        return StoreSight(f"run {self.run_number}", uptime_ms, self.state.look())


class SimulatedStore(StateStore):
    """One scheduler's connection."""

    def __init__(self, redis: SimulatedRedis, life: Life, digest: str) -> None:
        self._redis = redis
        self._life = life
        self._digest = digest

    async def check_server(self) -> list[str]:
        return []

    async def look(self) -> StoreSight:
        return await self._redis.call(self._life, self._redis.sight)

    async def acquire(self, candidate: LeaseCandidate) -> LeaseAcquired | LeaseHeld:
        return await self._redis.call(self._life, lambda: self._redis.acquire(candidate))

    async def raise_epoch(self, epoch: int, leader_id: str, above: int) -> int | None:
        state = self._redis.state
        return await self._redis.call(
            self._life, lambda: state.raise_epoch(epoch, leader_id, above)
        )

    async def load(self) -> LoadedState:
        return await self._redis.call(self._life, self._redis.state.load)

    async def commit(self, commit: Commit, lease_ttl_ms: int) -> CommitAnswer:
        return await self._redis.call(self._life, lambda: self._commit(commit, lease_ttl_ms))

    def _commit(self, commit: Commit, lease_ttl_ms: int) -> CommitAnswer:
        self._redis.state._config_digest = self._digest
        return self._redis.commit(commit, lease_ttl_ms)

    async def release(self, epoch: int, leader_id: str) -> None:
        state = self._redis.state
        await self._redis.call(self._life, lambda: state.release(epoch, leader_id))

    async def close(self) -> None:
        return None
