"""Kill the scheduler again and again while streams are open.

Knows names of children only. Invariant: at each kill every stream is open.
"""

from __future__ import annotations

import asyncio
import random

from tests.chaos.streams import Ask, Stream, Streams
from tests.served import Served


async def with_kills(
    served: Served, asked: list[Ask], rng: random.Random, *, num_kills: int, most_between: int
) -> list[Stream]:
    """What the streams gave, with the scheduler killed `num_kills` times in the middle of them."""
    async with Streams(served, asked) as streams:
        reached = 0
        for _ in range(num_kills):
            await streams.reach(reached + rng.randint(3, most_between))
            old_pid = served.kill("scheduler-0")
            await asyncio.to_thread(served.wait_restarted, "scheduler-0", old_pid)
            reached = max(len(stream.token_ids) for stream in streams.all)
    return streams.all
