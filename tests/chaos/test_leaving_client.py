"""A client that leaves in the middle of its stream: what it held is free within two steps."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import AsyncOpenAI, AsyncStream
from openai.types import Completion

from tests.chaos.kills import held_streams, let_run
from tests.chaos.step_gate import StepGate
from tests.chaos.streams import Ask, asks
from tests.served import ONE_THREAD, Served, wait_until

NUM_BLOCKS = 100
LEAVES = Ask("all that it will never hear " * 20, 1, 0.0, max_tokens=100)  # some 35 blocks
MOST_BLOCKS_OF_WHO_STAYS = 10


@pytest.fixture(scope="module")
def served(
    hand_model: Path, gate: StepGate, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    flags = ["--num-blocks", str(NUM_BLOCKS)]
    state_dir = tmp_path_factory.mktemp("serve") / "state"
    running = Served(hand_model, state_dir, flags, ONE_THREAD | gate.environ)
    yield running
    running.stop()
    print(running.log()[-20_000:])  # shown where the test failed


async def test_its_blocks_are_free_within_two_steps(served: Served, gate: StepGate) -> None:
    """They are without another: what is planned already writes nothing that a later step reads."""
    async with held_streams(served, gate, asks(1, max_tokens=80)) as staying:
        async with AsyncOpenAI(
            base_url=f"{served.url}/v1", api_key="none", max_retries=0
        ) as client:
            asking = asyncio.create_task(_begun(client, served))
            await _until_known(served, 2)
            while not asking.done():
                await let_run(staying, gate, num_steps=1, num_tokens=1)
            assert _num_used_blocks(served) > MOST_BLOCKS_OF_WHO_STAYS
            await (await asking).close()
        await _until_known(served, 1)  # no step runs meanwhile
        assert _num_used_blocks(served) <= MOST_BLOCKS_OF_WHO_STAYS
        await let_run(staying, gate, num_steps=3, num_tokens=3)
        assert _num_used_blocks(served) <= MOST_BLOCKS_OF_WHO_STAYS


async def _begun(client: AsyncOpenAI, served: Served) -> AsyncStream[Completion]:
    """Its stream, once the first chunk has come."""
    chunks = await client.completions.create(**LEAVES.body(served.model), stream=True)
    await anext(aiter(chunks))
    return chunks


async def _until_known(served: Served, count: int) -> None:
    def are_known() -> bool:
        metrics = served.metrics("scheduler-0")
        return metrics["vllm:num_requests_running"] + metrics["vllm:num_requests_waiting"] == count

    await asyncio.to_thread(wait_until, are_known, f"{count} requests are known")


def _num_used_blocks(served: Served) -> int:
    return round(served.metrics("scheduler-0")["vllm:kv_cache_usage_perc"] * (NUM_BLOCKS - 1))
