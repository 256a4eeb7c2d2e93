"""The promise: kill -9 of the scheduler changes nothing that a client can see."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.kills import with_kills
from tests.chaos.step_gate import StepGate
from tests.chaos.streams import Streams, asks, undisturbed
from tests.served import ONE_THREAD, Served, wait_until

NUM_KILLS = 10
MOST_STEPS = 30  # between two kills


@pytest.fixture(scope="module")
def served(
    hand_model: Path, gate: StepGate, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    state_dir = tmp_path_factory.mktemp("serve") / "state"
    running = Served(hand_model, state_dir, environ=ONE_THREAD | gate.environ)
    yield running
    running.stop()
    print(running.log()[-20_000:])  # shown where the test failed


async def test_ten_kills_change_nothing(served: Served, gate: StepGate, rng: random.Random) -> None:
    asked = asks(8, max_tokens=NUM_KILLS * MOST_STEPS + 50)
    expected = await undisturbed(served, asked)
    computed_before = served.metrics("executor-0")["segue:executor_positions_recomputed_total"]
    streams = await with_kills(served, gate, asked, rng, num_kills=NUM_KILLS, most_steps=MOST_STEPS)
    assert [s.token_ids for s in streams] == [s.token_ids for s in expected]
    assert [s.text for s in streams] == [s.text for s in expected]
    assert [s.finish_reason for s in streams] == [s.finish_reason for s in expected]
    metrics = served.metrics("executor-0")
    assert metrics["segue:executor_positions_recomputed_total"] == computed_before


async def test_a_killed_executor_costs_time_and_no_text(
    served: Served, gate: StepGate, rng: random.Random
) -> None:
    asked = asks(8, max_tokens=120)
    expected = await undisturbed(served, asked)
    streams = await with_kills(
        served, gate, asked, rng, num_kills=2, most_steps=40, names=["executor-0"]
    )
    assert [s.text for s in streams] == [s.text for s in expected]
    assert [s.finish_reason for s in streams] == [s.finish_reason for s in expected]


async def test_redis_is_empty_of_unfinished_work_afterwards(served: Served) -> None:
    async with Streams(served, asks(3, max_tokens=10)):
        pass

    def usage() -> bool:
        metrics = served.metrics("scheduler-0")
        return metrics["segue:kv_blocks_free"] == metrics["segue:kv_blocks_usable"]

    wait_until(usage, "all blocks are free")
    metrics = served.metrics("scheduler-0")
    assert metrics["vllm:num_requests_running"] == metrics["vllm:num_requests_waiting"] == 0
