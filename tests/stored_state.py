"""A state of the simulation, put into a real Redis as a scheduler would have committed it.

Knows the store and the simulation. Invariant: the rows are those of one commit of one world in
which requests run, steps are in flight and something has ended.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest

from scheduler_svc.core.rows import Commit, CommitId, Delta, Key, Rows, Table
from scheduler_svc.store.redis_store import open_store
from scheduler_svc.store.state_store import LeaseCandidate
from tests.sim.checkers import Checkers
from tests.sim.simulation import simulate

FIRST_SEED, LAST_SEED = 3, 30


def simulated_rows() -> Rows:
    """Of the commit with which most requests ran, in the first world where several did."""
    kept: list[tuple[int, Rows]] = []
    original = Checkers._check_rows

    def keep(self: Checkers, leader: Any) -> None:
        stored = self.cluster.redis.state.all_rows()
        running = [len(r) for key, r in stored.ranks.items() if key.table is Table.LANE_RUNNING]
        steps = [key for key, r in stored.hashes.items() if key.table is Table.LANE_STEPS and r]
        if steps and stored.ranks.get(Key(Table.FINISHED)):
            kept.append((sum(running), copy.deepcopy(stored)))
        original(self, leader)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkers, "_check_rows", keep)
        for seed in range(FIRST_SEED, LAST_SEED):
            simulate(seed)
            count, best = max(kept, key=lambda one: one[0], default=(0, Rows()))
            if count > 1:
                return best
    raise AssertionError(f"no world of {FIRST_SEED} to {LAST_SEED} has the state that is wanted")


async def put(rows: Rows, redis_url: str, *, lease_ttl_ms: int = 3000) -> None:
    """Into a deployment `default` that is empty."""
    store = open_store(redis_url, "default", config_digest="unified-0")
    await store.acquire(LeaseCandidate("s0", "A", "s0:1", lease_ttl_ms))
    delta = Delta(
        fields=rows.hashes,
        ranks=rows.ranks,
        outputs={key.owner: (0, value) for key, value in rows.strings.items()},
    )
    await store.commit(Commit(CommitId(1, "A", 1), None, delta, 1), lease_ttl_ms)
    await store.close()
