"""The promise on a real model: ten kills, in bf16 and in fp32, greedy and seeded."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from segue.model_files.demo_model import ensure_demo_model
from tests.chaos.kills import with_kills
from tests.chaos.step_gate import StepGate
from tests.chaos.streams import asks, undisturbed
from tests.served import ONE_THREAD, Served

NUM_KILLS = 10
MOST_STEPS = 8  # between two kills
RECOMPUTED = "segue:executor_positions_recomputed_total"


@pytest.fixture(params=["bfloat16", "float32"])
def served(
    request: pytest.FixtureRequest, gate: StepGate, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    flags = ["--dtype", request.param, "--num-blocks", "400"]
    state_dir = tmp_path_factory.mktemp("serve") / "state"
    running = Served(ensure_demo_model(), state_dir, flags, ONE_THREAD | gate.environ)
    yield running
    running.stop()
    print(running.log()[-20_000:])  # shown where the test failed


@pytest.mark.timeout(600)  # eleven restarts of a real model, on whatever machine
async def test_kills_change_nothing(served: Served, gate: StepGate, rng: random.Random) -> None:
    """Ten of the scheduler, with nothing computed twice; then one of the executor."""
    asked = asks(8, max_tokens=NUM_KILLS * MOST_STEPS + 30)
    expected = await undisturbed(served, asked)
    before = served.metrics("executor-0")[RECOMPUTED]
    streams = await with_kills(served, gate, asked, rng, num_kills=NUM_KILLS, most_steps=MOST_STEPS)
    assert [s.token_ids for s in streams] == [s.token_ids for s in expected]
    assert [s.text for s in streams] == [s.text for s in expected]
    assert served.metrics("executor-0")[RECOMPUTED] == before
    again = await with_kills(
        served, gate, asked, rng, num_kills=1, most_steps=60, names=["executor-0"]
    )
    assert [s.text for s in again] == [s.text for s in expected]
