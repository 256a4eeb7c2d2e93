"""How full the executors' KV caches are, as the leader says, for a gateway's page.

The Gateway API inference extension reads one port of a model server: vLLM's, which is ours to
clients. Knows nothing about pages. Invariant: asked at a scrape and never otherwise; who does not
answer in time is left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from segue.admin_client import AdminClient, AdminError
from segue.grpc_tls import TlsFiles

TIMEOUT_S = 1.0


class LeaderKvUsage:
    def __init__(self, schedulers: Sequence[str], tls: TlsFiles | None) -> None:
        self._admin = AdminClient(schedulers, TIMEOUT_S, tls)

    async def read(self) -> float | None:
        """1: all blocks are in use. None: nobody leads, or there is no executor."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                status = await self._admin.get_status()
        except (AdminError, TimeoutError):
            return None
        num_usable = sum(lane.num_usable_blocks for lane in status.lanes)
        num_free = sum(lane.num_free_blocks for lane in status.lanes)
        return 1 - num_free / num_usable if num_usable else None
