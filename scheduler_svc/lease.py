"""Campaigns for the lease: waits while another leads, and takes over when nobody does.

Knows the store's contract; knows nothing about rows, commits or peers. Renewal is not here: every
commit renews. Invariant: the lease only says who may try; the epoch is what fences, so waiting
longer than needed is a delay and taking over too early is a wasted recomputation, never a wrong
answer.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Awaitable, Callable

from scheduler_svc.store.state_store import (
    LeaseAcquired,
    LeaseCandidate,
    LeaseHeld,
    StateStore,
    StoreSight,
    StoreUnavailable,
)

log = logging.getLogger("segue.scheduler")

ATTEMPTS_PER_TTL = 3
JITTER = 0.2  # share of a pause, so that two standbys do not keep step


class LeaseKeeper:
    """One scheduler's way to the lease. Give each life of a leader its own `campaign()`."""

    def __init__(
        self,
        store: StateStore,
        scheduler_id: str,
        address: str,
        lease_ttl_s: float,
        *,
        has_peers: bool = True,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._store = store
        self._scheduler_id = scheduler_id
        self._address = address
        self._lease_ttl_s = lease_ttl_s
        self._has_peers = has_peers  # without any, nobody can be alive and not know it
        self._sleep = sleep
        self._held: LeaseHeld | None = None
        self._run_id = ""
        self._courtesy_left_s: float | None = None
        self.is_store_down = False
        self.highest_epoch_seen = 0  # named by a peer: the next epoch must be above it

    @property
    def leader_address(self) -> str:
        """Where the leader was when we last looked; empty while there is none that we know."""
        if self._held is None or self._held.expires_in_ms <= 0:
            return ""
        return self._held.address

    async def campaign(self) -> tuple[LeaseAcquired, str]:
        """Returns when we lead: what was acquired, and the leader id drawn for it."""
        leader_id = secrets.token_hex(8)
        while True:
            try:
                acquired = await self._attempt(leader_id)
                self.is_store_down = False
            except StoreUnavailable as error:
                if not self.is_store_down:
                    log.warning("redis is not available, no lease can be taken: %s", error)
                self.is_store_down, acquired = True, None
            if acquired is not None:
                log.info("leads with epoch %d as %s", acquired.epoch, leader_id)
                return acquired, leader_id
            await self._pause()

    async def _attempt(self, leader_id: str) -> LeaseAcquired | None:
        sight = await self._store.look()
        self._held = sight.leader
        if self._must_wait(sight):
            return None
        candidate = LeaseCandidate(
            self._scheduler_id,
            leader_id,
            self._address,
            int(self._lease_ttl_s * 1000),
            self.highest_epoch_seen,
        )
        answer = await self._store.acquire(candidate)
        if isinstance(answer, LeaseHeld):
            self._held = answer
            return None
        self._held = None
        return answer

    def _must_wait(self, sight: StoreSight) -> bool:
        """Held by another; or free, but its holder may live and not know it (PROTOCOL.md H14).

        After FLUSHALL, a restart or a failover the lease looks free, though the leader is alive
        and the only one who knows the state: it gets one `lease_ttl_s` to commit first.
        """
        leader = sight.leader
        if leader is not None and leader.scheduler_id == self._scheduler_id:
            return False
        is_other_life = self._run_id not in ("", sight.run_id)
        is_young = self._run_id == "" and sight.uptime_ms < self._lease_ttl_s * 1000
        self._run_id = sight.run_id
        if leader is not None and leader.expires_in_ms > 0:
            self._courtesy_left_s = None
            return True
        if is_other_life or (self._courtesy_left_s is None and (leader is None or is_young)):
            self._courtesy_left_s = self._lease_ttl_s if self._has_peers else 0.0
        return self._courtesy_left_s is not None and self._courtesy_left_s > 0

    async def _pause(self) -> None:
        """A third of the lease, or less where the lease or the courtesy ends sooner."""
        pause_s = self._lease_ttl_s / ATTEMPTS_PER_TTL
        if self._held is not None and self._held.expires_in_ms > 0:
            pause_s = min(pause_s, self._held.expires_in_ms / 1000)
        elif self._courtesy_left_s:
            pause_s = min(pause_s, self._courtesy_left_s)
        # A time that this process slept through (SIGSTOP) counts as one pause: see H19.
        pause_s = max(pause_s, 0.01) * (1 + JITTER * random.random())
        await self._sleep(pause_s)
        if self._courtesy_left_s:
            self._courtesy_left_s = max(0.0, self._courtesy_left_s - pause_s)
