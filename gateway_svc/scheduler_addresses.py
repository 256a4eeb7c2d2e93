"""Where the leader may be: the configured schedulers in turn, and whom one of them named.

Knows nothing about the protocol. Invariant: a hint is tried once and then forgotten, so two
schedulers that name each other, or a dead leader, cannot keep us from the others.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque


class SchedulerAddresses:
    def __init__(self, configured: tuple[str, ...]) -> None:
        assert configured
        self._configured = configured
        self._queue: deque[str] = deque()
        self._hint = ""

    def suggest(self, address: str) -> None:
        self._hint = address

    async def next(self) -> str:
        """The address to try now, as host:port."""
        if self._hint:
            hint, self._hint = self._hint, ""
            return hint
        if not self._queue:
            for address in self._configured:
                self._queue.extend(await _resolve(address))
        return self._queue.popleft()


async def _resolve(address: str) -> list[str]:
    """Every address of this name: behind one name there may be several schedulers."""
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return [address]  # gRPC will say what is wrong with it
    hosts = dict.fromkeys(str(info[4][0]) for info in found)
    return [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host in hosts]
