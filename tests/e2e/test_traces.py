"""Traces that nobody takes: a dead collector costs the spans, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from segue.serve_plan import free_ports
from tests.served import ONE_THREAD, Served

ASKED = {"prompt": "Tell me about the sea.", "max_tokens": 60, "temperature": 1.0, "seed": 7}


@pytest.fixture(scope="module")
def served(hand_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    (port,) = free_ports(1)
    nobody = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}"}
    running = Served(
        hand_model, tmp_path_factory.mktemp("serve") / "state", (), {**ONE_THREAD, **nobody}
    )
    yield running
    running.stop()
    print(running.log()[-20_000:])


def _complete(served: Served) -> str:
    client = OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=60)
    with client:
        answer = client.completions.create(
            model=served.model, extra_body={"ignore_eos": True}, **ASKED
        )
    return answer.choices[0].text


def test_a_dead_collector_changes_no_answer(served: Served) -> None:
    """The same request gives the same text, before and after spans have begun to be lost."""
    first = _complete(served)
    assert len(first) > 0
    assert _complete(served) == first
    assert served.get_status("/ready") == 200


def test_services_stop_in_time_though_nobody_takes_their_spans(served: Served) -> None:
    """And each has said once that they are lost."""
    served.stop()
    assert served.process.returncode == 0
    losses = [line for line in served.log().splitlines() if "spans are lost" in line]
    services = [line.partition("|")[0].strip() for line in losses]
    assert len(services) == len(set(services))
