"""A client whose gateway dies comes back through another, with what it saw last."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.served import Served

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


class Events:
    """The text and the last event id of a stream of server-sent events."""

    def __init__(self) -> None:
        self.text = ""
        self.last_id = ""
        self.finish_reason: str | None = None
        self.is_done = False

    def take(self, line: str) -> None:
        if line.startswith("id: "):
            self.last_id = line[4:]
        elif line == "data: [DONE]":
            self.is_done = True
        elif line.startswith("data: "):
            chunk: dict[str, Any] = json.loads(line[6:])
            assert "error" not in chunk, chunk
            for choice in chunk["choices"]:
                self.text += choice["text"]
                self.finish_reason = choice["finish_reason"] or self.finish_reason


def body(served: Served) -> dict[str, Any]:
    return {"model": served.model, "stream": True, "ignore_eos": True, **PROMPT}


def read_until_killed(served: Served, url: str, seen: Events) -> None:
    with httpx.stream("POST", url, json=body(served), timeout=60) as response:
        for line in response.iter_lines():
            seen.take(line)
            if len(seen.text) > 40 and not line:
                served.kill("gateway-0")


def test_a_stream_goes_on_through_another_gateway(served: Served) -> None:
    first, second = served.gateway_urls()
    whole = Events()
    with httpx.stream("POST", f"{first}/v1/completions", json=body(served), timeout=60) as response:
        for line in response.iter_lines():
            whole.take(line)
    seen = Events()
    with pytest.raises(httpx.HTTPError):
        read_until_killed(served, f"{first}/v1/completions", seen)
    assert seen.finish_reason is None
    request_id = seen.last_id.partition(";")[0]
    headers = {"Last-Event-ID": seen.last_id}
    url = f"{second}/v1/streams/{request_id}"
    with httpx.stream("GET", url, headers=headers, timeout=60) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            seen.take(line)
    assert seen.is_done
    assert (seen.text, seen.finish_reason) == (whole.text, whole.finish_reason)
