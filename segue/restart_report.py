"""What a restart cost, in the scheduler's own numbers.

Knows GetStatus; knows nothing about processes. Invariant: says only what the leader says, and where
there is no leader to ask, says that.
"""

from __future__ import annotations

import asyncio

from segue.admin_client import AdminClient, AdminError

# Gateways come back to a new leader within their own back-off (0.3 s): after this, all have.
RECONNECT_S = 1.0


class RestartReport:
    """Remembers what stood before, so that each line says what is new since the one before."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin
        self._epoch = 0
        self._num_streams_resumed = 0
        self._num_tokens_recomputed = 0

    async def note(self) -> None:
        """How things stand before anything has died; nothing, if the leader has just died."""
        try:
            status = await self._admin.get_status()
        except AdminError:
            return
        self._epoch = status.leader.epoch
        self._num_streams_resumed = status.num_streams_resumed
        self._num_tokens_recomputed = status.num_tokens_recomputed

    async def describe(self, name: str) -> str:
        """The rest of the line about the restart of `name`."""
        await asyncio.sleep(RECONNECT_S)
        try:
            status = await self._admin.get_status()
        except AdminError as error:
            return f" · {error}"
        has_new_leader = status.leader.epoch != self._epoch
        # A leader counts from zero, from its own start.
        resumed_before = 0 if has_new_leader else self._num_streams_resumed
        recomputed_before = 0 if has_new_leader else self._num_tokens_recomputed
        num_resumed = status.num_streams_resumed - resumed_before
        num_recomputed = status.num_tokens_recomputed - recomputed_before
        self._epoch = status.leader.epoch
        self._num_streams_resumed = status.num_streams_resumed
        self._num_tokens_recomputed = status.num_tokens_recomputed
        if name.startswith(("executor", "redis")):
            # Their streams never left the gateway: they are what goes on now.
            num_resumed = sum(
                lane.num_running + lane.num_waiting + lane.num_swapped for lane in status.lanes
            )
        return (
            f" · epoch {status.leader.epoch} · {num_resumed} streams resumed"
            f" · {num_recomputed} tokens recomputed"
        )
