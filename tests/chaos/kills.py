"""Kill processes again and again while streams are open.

Knows names of children, and the gate before their steps. Invariant: at each kill every stream has
begun and none has ended, by the number of steps that were allowed and not by time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from tests.chaos.step_gate import StepGate
from tests.chaos.streams import Ask, Stream, Streams
from tests.served import Served, wait_until

Metrics = dict[str, float]
IsDue = Callable[[Metrics, Metrics], bool]  # of the leader's, before a step and behind it


@asynccontextmanager
async def held_streams(
    served: Served,
    gate: StepGate,
    asked: list[Ask],
    leader: str = "scheduler-0",
    urls: Sequence[str] = (),
) -> AsyncIterator[Streams]:
    """Streams of which each has begun, with the gate closed. It is opened at the end.

    `urls`: see `Streams`.

    A step of earlier requests would take what is allowed to one of these, and give no token: one
    may be under way when its requests have ended, since drafts end them sooner than was planned.
    """
    await asyncio.to_thread(wait_until, lambda: _is_idle(served, leader), "no step is under way")
    gate.close()
    try:
        async with Streams(served, asked, urls) as streams:
            await asyncio.to_thread(
                wait_until,
                lambda: _num_known(served.metrics(leader)) == len(asked),
                "all are known",
            )
            while not all(stream.token_ids for stream in streams.all):
                await let_run(streams, gate, num_steps=1, num_tokens=1)
            yield streams
            gate.open()
    finally:
        gate.open()


def _num_known(metrics: dict[str, float]) -> float:
    return metrics["vllm:num_requests_running"] + metrics["vllm:num_requests_waiting"]


def _is_idle(served: Served, leader: str) -> bool:
    metrics = served.metrics(leader)
    return _num_known(metrics) == 0 and metrics["segue:steps_in_flight"] == 0


async def let_run(streams: Streams, gate: StepGate, *, num_steps: int, num_tokens: int) -> None:
    """Allow `num_steps`, and come back when the streams together have `num_tokens` more."""
    wanted = streams.num_tokens() + num_tokens
    gate.allow(num_steps)
    await streams.reach_together(wanted)


async def kill(served: Served, names: Sequence[str]) -> None:
    """All at once; comes back when each has been started again."""
    old_pids = {name: served.kill(name) for name in names}
    for name, old_pid in old_pids.items():
        await asyncio.to_thread(served.wait_restarted, name, old_pid)


async def with_kills(
    served: Served,
    gate: StepGate,
    asked: list[Ask],
    rng: random.Random,
    *,
    num_kills: int,
    most_steps: int,
    names: Sequence[str] = ("scheduler-0",),
    is_due: IsDue | None = None,
) -> list[Stream]:
    """What the streams gave, with `names` killed `num_kills` times in the middle of them.

    A kill comes while some of up to `most_steps` steps run, or while one waits. It is put
    off, step by step, until `is_due` says so.
    """
    async with held_streams(served, gate, asked) as streams:
        for _ in range(num_kills):
            num_steps = rng.randint(2, most_steps)
            await let_run(
                streams, gate, num_steps=num_steps, num_tokens=rng.randint(1, num_steps // 2)
            )
            if is_due is not None:
                await _run_until(served, gate, streams, is_due)
            assert all(stream.finish_reason is None for stream in streams.all)
            await kill(served, names)
    return streams.all


async def _run_until(served: Served, gate: StepGate, streams: Streams, is_due: IsDue) -> None:
    before = await asyncio.to_thread(served.metrics, "scheduler-0")
    while True:
        await let_run(streams, gate, num_steps=1, num_tokens=1)
        after = await asyncio.to_thread(served.metrics, "scheduler-0")
        if is_due(before, after):
            return
        before = after
