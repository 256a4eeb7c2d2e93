"""Clients that leave at random: nothing of them stays."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import AsyncOpenAI

from tests.served import Served, wait_until

NUM_REQUESTS = 200
NUM_AT_ONCE = 40


@pytest.fixture(scope="module")
def served(hand_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Few blocks, so that requests are preempted; finished rows are kept for a second."""
    flags = ["--num-blocks", "40", "--finished-ttl-s", "1"]
    running = Served(hand_model, tmp_path_factory.mktemp("serve") / "state", flags)
    yield running
    running.stop()
    print(running.log()[-20_000:])  # shown where the test failed


async def ask_and_maybe_leave(client: AsyncOpenAI, model: str, rng: random.Random) -> None:
    chunks = await client.completions.create(
        model=model,
        prompt="x" * rng.randint(1, 300),
        max_tokens=rng.randint(1, 150),
        stream=True,
        extra_body={"ignore_eos": True},
    )
    num_wanted = rng.choice([0, 1, rng.randint(1, 150), 10_000])
    num_seen = 0
    async for _ in chunks:
        num_seen += 1
        if num_seen >= num_wanted:
            await chunks.close()
            return


async def test_nothing_of_two_hundred_requests_stays(served: Served, rng: random.Random) -> None:
    slots = asyncio.Semaphore(NUM_AT_ONCE)
    url = f"{served.url}/v1"
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=100) as client:

        async def one() -> None:
            async with slots:
                await ask_and_maybe_leave(client, served.model, rng)

        await asyncio.gather(*(one() for _ in range(NUM_REQUESTS)))

    def is_empty() -> bool:
        metrics = served.metrics("scheduler-0")
        return (
            metrics["vllm:num_requests_running"] == metrics["vllm:num_requests_waiting"] == 0
            and metrics["segue:kv_blocks_free"] == metrics["segue:kv_blocks_usable"]
        )

    wait_until(is_empty, "no request and no used block")
    assert served.metrics("scheduler-0")["vllm:num_preemptions_total"] > 0
    per_request = ("outputs", "logprobs", "submissions", "requests", "finished", "tables")

    def left() -> list[str]:
        keys = [key.decode() for key in served.redis("KEYS", "*")]
        return [key for key in keys if any(f":{table}" in key for table in per_request)]

    wait_until(lambda: not left(), f"no rows of requests in redis, but {left()}")
