"""Asks each kind of service whether it is ready.

Knows one question for each; knows nothing about processes. Invariant: a question never raises and
never waits for long, and "no" is the answer to whatever is not a clear "yes".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import httpx

from segue.admin_client import AdminClient, AdminError

Probe = Callable[[], Awaitable[bool]]
TIMEOUT_S = 1.0


def is_led(admin: AdminClient, port: int) -> Probe:
    """The scheduler on this port listens (it may be a standby), and one of them leads."""

    async def is_ready() -> bool:
        if not await _accepts_connections(port):
            return False
        try:
            await admin.get_status()
        except AdminError:
            return False
        return True

    return is_ready


def answers_http(url: str) -> Probe:
    """A gateway says 200."""

    async def is_ready() -> bool:
        try:
            async with httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False) as client:
                return (await client.get(url)).status_code == 200
        except httpx.HTTPError:
            return False

    return is_ready


def leader_reaches(admin: AdminClient, executor_id: str) -> Probe:
    """The scheduler that leads is connected to this executor, with a generation open."""

    async def is_ready() -> bool:
        try:
            status = await admin.get_status()
        except AdminError:
            return False
        return any(
            lane.executor_id == executor_id and lane.is_connected and lane.generation.number > 0
            for lane in status.lanes
        )

    return is_ready


async def _accepts_connections(port: int) -> bool:
    try:
        async with asyncio.timeout(TIMEOUT_S):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True
