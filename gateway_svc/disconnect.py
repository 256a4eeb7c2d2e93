"""Ends work when the client that asked for it has left.

Knows ASGI's receive channel only. Invariant: the work has ended when this returns, whichever of the
two came first; so whoever waits may clean up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

ResultT = TypeVar("ResultT")


class ClientLeft(Exception):
    """The connection was closed from the other side."""


async def while_connected(receive: Receive, work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """The result of `work`, which is cancelled if the client leaves first (ClientLeft)."""
    task = asyncio.create_task(work)
    watch = asyncio.create_task(_left(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientLeft
        return task.result()
    finally:
        for one in (task, watch):
            one.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _left(receive: Receive) -> None:
    """Returns at the disconnect. The body was read before, so nothing else comes."""
    while (await receive())["type"] != "http.disconnect":
        pass
