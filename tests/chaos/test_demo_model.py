"""The promise on a real model: ten kills, in bf16 and in fp32, greedy and seeded."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import pytest

from segue.model_files.demo_model import ensure_demo_model
from tests.chaos.kills import with_kills
from tests.chaos.streams import Streams, asks, undisturbed
from tests.served import Served

RECOMPUTED = "segue:executor_positions_recomputed_total"


@pytest.fixture(params=["bfloat16", "float32"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    flags = ["--dtype", request.param, "--num-blocks", "400"]
    state_dir = tmp_path_factory.mktemp("serve") / "state"
    running = Served(ensure_demo_model(), state_dir, flags)
    yield running
    running.stop()
    print(running.log()[-20_000:])  # shown where the test failed


@pytest.mark.timeout(600)  # eleven restarts of a real model, on whatever machine
async def test_kills_change_nothing(served: Served, rng: random.Random) -> None:
    """Ten of the scheduler, with nothing computed twice; then one of the executor."""
    asked = asks(8, max_tokens=200)
    expected = await undisturbed(served, asked)
    before = served.metrics("executor-0")[RECOMPUTED]
    streams = await with_kills(served, asked, rng, num_kills=10, most_between=10)
    assert [s.token_ids for s in streams] == [s.token_ids for s in expected]
    assert [s.text for s in streams] == [s.text for s in expected]
    assert served.metrics("executor-0")[RECOMPUTED] == before
    async with Streams(served, asked) as again:
        await again.reach(30)
        old_pid = served.kill("executor-0")
        await asyncio.to_thread(served.wait_restarted, "executor-0", old_pid)
    assert [s.text for s in again.all] == [s.text for s in expected]
