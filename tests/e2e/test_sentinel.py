"""`segue serve` on Redis with Sentinels, whose master is killed while a stream is open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from tests.sentinel_processes import SentinelProcesses, running_sentinels
from tests.served import Served

NUM_TOKENS = 1000
ASKED: dict[str, Any] = {"prompt": "Tell me about the sea.", "max_tokens": NUM_TOKENS, "seed": 7}


@pytest.fixture
def servers() -> Iterator[SentinelProcesses]:
    with running_sentinels() as running:
        yield running


@pytest.fixture
def served(hand_model: Path, tmp_path: Path, servers: SentinelProcesses) -> Iterator[Served]:
    running = Served(hand_model, tmp_path / "state", ["--redis-url", servers.url])
    yield running
    running.stop()
    print(running.log()[-10_000:])


@pytest.mark.timeout(240)
def test_a_stream_goes_on_behind_a_failover(served: Served, servers: SentinelProcesses) -> None:
    """Whether the new master has all commits or lacks the last ones: the same text, no error."""
    with OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=120) as client:

        def stream() -> Any:
            options = {"extra_body": {"ignore_eos": True}, "stream": True}
            return client.completions.create(model=served.model, **ASKED, **options)

        undisturbed = "".join(chunk.choices[0].text for chunk in stream())
        chunks = stream()
        text = "".join(next(chunks).choices[0].text for _ in range(3))
        num_tokens = served.metrics("scheduler-0")["vllm:generation_tokens_total"]
        assert num_tokens < 2 * NUM_TOKENS, "it has ended before the failover"
        servers.fail_over()
        text += "".join(chunk.choices[0].text for chunk in chunks)
    assert text == undisturbed
