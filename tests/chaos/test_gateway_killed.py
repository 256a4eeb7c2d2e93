"""A client whose gateway dies comes back through another, with what it saw last."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.served import Served, parse_metrics
from tests.server_events import Events

PROMPT = {"prompt": "A gateway may die.", "max_tokens": 300, "temperature": 0, "seed": 3}


@pytest.fixture(scope="module")
def served(hand_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setenv("SEGUE_FAULT_STEP_DELAY_MS", "10")
    flags = ["--num-gateways", "2"]
    running = Served(hand_model, tmp_path_factory.mktemp("serve") / "state", flags)
    monkeypatch.undo()
    yield running
    running.stop()
    print(running.log()[-20_000:])  # shown where the test failed


def body(served: Served) -> dict[str, Any]:
    return {"model": served.model, "stream": True, "ignore_eos": True, **PROMPT}


def read_until_killed(served: Served, url: str, seen: Events) -> None:
    with httpx.stream("POST", url, json=body(served), timeout=60) as response:
        for line in response.iter_lines():
            seen.take(line)
            if len(seen.text) > 40 and not line:
                served.kill("gateway-0")


def read_on(url: str, seen: Events) -> None:
    """What comes behind what was seen, from the gateway at `url`, to the end."""
    headers = {"Last-Event-ID": seen.last_id}
    stream = f"{url}/v1/streams/{seen.last_id.partition(';')[0]}"
    with httpx.stream("GET", stream, headers=headers, timeout=60) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            seen.take(line)


def test_a_stream_goes_on_through_another_gateway(served: Served) -> None:
    first, second = served.gateway_urls()
    whole, seen = Events(), Events()
    with httpx.stream("POST", f"{first}/v1/completions", json=body(served), timeout=60) as response:
        for line in response.iter_lines():
            whole.take(line)
    with pytest.raises(httpx.HTTPError):
        read_until_killed(served, f"{first}/v1/completions", seen)
    assert seen.finish_reason is None
    read_on(second, seen)
    assert seen.is_done
    assert (seen.text, seen.finish_reason) == (whole.text, whole.finish_reason)


def busy_worker(served: Served) -> int:
    """The pid of the worker that counts a running choice."""
    command = Path(f"/proc/{served.pid('gateway-0')}/cmdline").read_bytes().decode().split("\0")
    ports = command[command.index("--metrics-ports") + 1].split(",")
    for index, port in enumerate(ports):
        page = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=10).text
        if parse_metrics(page)["vllm:num_requests_running"]:
            return child_with(served.pid("gateway-0"), f"g0.{index}")
    raise AssertionError("no worker streams")


def child_with(parent: int, argument: str) -> int:
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    for child in children:
        if argument in Path(f"/proc/{child}/cmdline").read_bytes().decode().split("\0"):
            return int(child)
    raise AssertionError(f"no child of {parent} has {argument}")


def test_a_killed_workers_stream_goes_on_through_its_port(
    hand_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEGUE_FAULT_STEP_DELAY_MS", "10")
    served = Served(hand_model, tmp_path / "state", ["--gateway-workers", "2"])
    try:
        url = f"{served.url}/v1/completions"
        whole, seen = Events(), Events()
        with httpx.stream("POST", url, json=body(served), timeout=60) as response:
            for line in response.iter_lines():
                whole.take(line)
        is_killed = False
        with (
            pytest.raises(httpx.HTTPError),
            httpx.stream("POST", url, json=body(served), timeout=60) as response,
        ):
            for line in response.iter_lines():
                seen.take(line)
                if len(seen.text) > 40 and not line and not is_killed:
                    os.kill(busy_worker(served), signal.SIGKILL)
                    is_killed = True
        assert seen.finish_reason is None
        read_on(served.url, seen)
        assert (seen.text, seen.finish_reason) == (whole.text, whole.finish_reason)
    finally:
        served.stop()
        print(served.log()[-20_000:])
