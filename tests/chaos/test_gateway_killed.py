"""A client whose gateway dies comes back through another, with what it saw last."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.chaos.step_gate import StepGate
from tests.served import ONE_THREAD, Served, child_with, parse_metrics
from tests.server_events import Events

MOST_STEPS = 150  # of 300 that the stream takes
PROMPT = {"prompt": "A gateway may die.", "max_tokens": 300, "temperature": 0, "seed": 3}


@pytest.fixture(scope="module")
def served(
    hand_model: Path, gate: StepGate, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    flags = ["--num-gateways", "2"]
    state_dir = tmp_path_factory.mktemp("serve") / "state"
    running = Served(hand_model, state_dir, flags, ONE_THREAD | gate.environ)
    yield running
    running.stop()
    print(running.log()[-20_000:])  # shown where the test failed


def body(served: Served) -> dict[str, Any]:
    return {"model": served.model, "stream": True, "ignore_eos": True, **PROMPT}


def read_whole(served: Served, url: str) -> Events:
    whole = Events()
    with httpx.stream("POST", url, json=body(served), timeout=60) as response:
        for line in response.iter_lines():
            whole.take(line)
    return whole


def read_until_killed(
    served: Served, gate: StepGate, url: str, kill: Callable[[], object]
) -> Events:
    """What came before `kill`, which comes in the middle: there are steps for no more than that."""
    seen, is_killed = Events(), False
    gate.close()
    gate.allow(MOST_STEPS)
    try:
        with (
            pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)),
            httpx.stream("POST", url, json=body(served), timeout=60) as response,
        ):
            for line in response.iter_lines():
                seen.take(line)
                if len(seen.text) > 40 and not line and not is_killed:
                    kill()
                    is_killed = True
    finally:
        gate.open()
    assert is_killed
    assert seen.finish_reason is None
    return seen


def read_on(url: str, seen: Events) -> None:
    """What comes behind what was seen, from the gateway at `url`, to the end."""
    headers = {"Last-Event-ID": seen.last_id}
    stream = f"{url}/v1/streams/{seen.last_id.partition(';')[0]}"
    with httpx.stream("GET", stream, headers=headers, timeout=60) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            seen.take(line)


def test_a_stream_goes_on_through_another_gateway(served: Served, gate: StepGate) -> None:
    first, second = served.gateway_urls()
    url = f"{first}/v1/completions"
    whole = read_whole(served, url)
    seen = read_until_killed(served, gate, url, lambda: served.kill("gateway-0"))
    read_on(second, seen)
    assert seen.is_done
    assert (seen.text, seen.finish_reason) == (whole.text, whole.finish_reason)


def busy_worker(served: Served) -> int:
    """The pid of the worker that counts a running choice."""
    command = Path(f"/proc/{served.pid('gateway-0')}/cmdline").read_bytes().decode().split("\0")
    ports = command[command.index("--metrics-ports") + 1].split(",")
    for index, port in enumerate(ports):
        page = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=60).text
        if parse_metrics(page)["vllm:num_requests_running"]:
            return child_with(served.pid("gateway-0"), f"g0.{index}")
    raise AssertionError("no worker streams")


def test_a_killed_workers_stream_goes_on_through_its_port(
    hand_model: Path, gate: StepGate, tmp_path: Path
) -> None:
    flags = ["--gateway-workers", "2"]
    served = Served(hand_model, tmp_path / "state", flags, ONE_THREAD | gate.environ)
    try:
        url = f"{served.url}/v1/completions"
        whole = read_whole(served, url)

        def kill() -> None:
            os.kill(busy_worker(served), signal.SIGKILL)

        seen = read_until_killed(served, gate, url, kill)
        read_on(served.url, seen)
        assert (seen.text, seen.finish_reason) == (whole.text, whole.finish_reason)
    finally:
        served.stop()
        print(served.log()[-20_000:])
