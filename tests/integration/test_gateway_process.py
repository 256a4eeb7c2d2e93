"""The gateway as a process: how it stops, is killed, and what it says if it cannot start."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from segue.model_files.hand import write_hand_model
from tests.running_gateway import serve_stub, until_ready
from tests.scheduler_stub import Reply, SchedulerStub

ROOT = Path(__file__).parents[2]
TEXT = "The quick brown fox jumps over the lazy dog."
URL = re.compile(rb"on (http://\S+)")


@dataclass(slots=True)
class Process:
    process: asyncio.subprocess.Process
    http: httpx.AsyncClient

    async def end(self) -> int:
        return await self.process.wait()


async def _start(*flags: str) -> asyncio.subprocess.Process:
    command = [sys.executable, "-m", "gateway_svc", *flags]
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    return await asyncio.create_subprocess_exec(
        *command, stderr=asyncio.subprocess.PIPE, cwd=ROOT, env=environ
    )


@contextlib.asynccontextmanager
async def _gateway(model_dir: Path, address: str, *flags: str) -> AsyncIterator[Process]:
    process = await _start(
        *("--model", str(model_dir), "--schedulers", address, "--port", "0"),
        *("--heartbeat-s", "0.05"),
        *flags,
    )
    assert process.stderr is not None
    while (match := URL.search(await process.stderr.readline())) is None:
        pass
    async with httpx.AsyncClient(base_url=match[1].decode(), timeout=60) as http:
        try:
            await until_ready(http)
            yield Process(process, http)
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    return write_hand_model(tmp_path / "hand")


@pytest.fixture
async def stub() -> SchedulerStub:
    stub = SchedulerStub(lambda submission: Reply(TEXT.encode()))
    stub.is_running = False
    return stub


def _text(line: str) -> str:
    return json.loads(line.removeprefix("data: "))["choices"][0]["text"]


async def test_sigterm_refuses_new_requests_and_lets_running_ones_finish(
    stub: SchedulerStub, model_dir: Path
) -> None:
    body: dict[str, Any] = {"prompt": "p", "stream": True}
    async with serve_stub(stub) as address, _gateway(model_dir, address) as gateway:
        async with gateway.http.stream("POST", "/v1/completions", json=body) as response:
            stub.step(3)
            lines = response.aiter_lines()
            while not (await anext(lines)).startswith("data: "):
                pass
            gateway.process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(5):
                while (await gateway.http.get("/ready")).status_code != 503:
                    await asyncio.sleep(0.01)
            refused = await gateway.http.post("/v1/completions", json=body)
            assert refused.status_code == 503
            assert refused.headers["retry-after"]
            stub.is_running = True
            rest = [_text(line) async for line in lines if line.startswith("data: {")]
        async with asyncio.timeout(5):
            code = await gateway.end()
        await stub.until(lambda: stub.goodbyes)  # what is on its way when it ends

    assert "".join(rest) == TEXT[3:]
    assert code == 0
    assert stub.goodbyes == ["the gateway is stopping"]


async def test_the_grace_has_an_end(stub: SchedulerStub, model_dir: Path) -> None:
    flags = ("--drain-grace-s", "0.2")
    async with serve_stub(stub) as address, _gateway(model_dir, address, *flags) as gateway:
        asked = asyncio.create_task(gateway.http.post("/v1/completions", json={"prompt": "p"}))
        await stub.until(lambda: stub.requests)
        gateway.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(5):
            assert await gateway.end() == 0
        await asyncio.gather(asked, return_exceptions=True)


async def _read_until_its_end(
    gateway: Process, stub: SchedulerStub, body: dict[str, Any], end: Callable[[], None]
) -> tuple[str, str]:
    """Text and last event id of a stream of twelve tokens whose gateway is ended as they come."""
    text, event_id = "", ""
    with contextlib.suppress(httpx.RemoteProtocolError, httpx.ReadError):
        async with gateway.http.stream("POST", "/v1/completions", json=body) as response:
            stub.step(12)
            async for line in response.aiter_lines():
                if line.startswith("id: "):
                    event_id = line.removeprefix("id: ")
                elif line.startswith("data: "):
                    text += _text(line)
                    end()
    return text, event_id


async def test_a_stream_that_outlives_the_grace_goes_on_through_another_gateway(
    stub: SchedulerStub, model_dir: Path
) -> None:
    """A rolling update must not abort what it cuts off."""
    body: dict[str, Any] = {"prompt": "p", "stream": True}
    async with (
        serve_stub(stub) as address,
        _gateway(model_dir, address, "--gateway-id", "g0", "--drain-grace-s", "0.1") as first,
        _gateway(model_dir, address, "--gateway-id", "g1") as second,
    ):
        text, event_id = await _read_until_its_end(
            first, stub, body, lambda: first.process.send_signal(signal.SIGTERM)
        )
        assert await first.end() == 0
        assert text == TEXT[:12]
        stub.is_running = True
        answer = await second.http.get(
            f"/v1/streams/{event_id.partition(';')[0]}", headers={"Last-Event-ID": event_id}
        )

    rest = [_text(line) for line in answer.text.splitlines() if line.startswith("data: {")]
    assert text + "".join(rest) == TEXT


async def test_a_killed_gateways_stream_is_resumed_through_another(
    stub: SchedulerStub, model_dir: Path
) -> None:
    body: dict[str, Any] = {"prompt": "p", "stream": True, "stop": "lazy"}
    async with (
        serve_stub(stub) as address,
        _gateway(model_dir, address, "--gateway-id", "g0") as first,
        _gateway(model_dir, address, "--gateway-id", "g1") as second,
    ):
        text, event_id = await _read_until_its_end(first, stub, body, first.process.kill)
        assert text == TEXT[:12]
        stub.is_running = True
        answer = await second.http.get(
            f"/v1/streams/{event_id.partition(';')[0]}", headers={"Last-Event-ID": event_id}
        )

    rest = [_text(line) for line in answer.text.splitlines() if line.startswith("data: {")]
    assert text + "".join(rest) == TEXT[: TEXT.index("lazy")]
    assert answer.text.endswith("data: [DONE]\n\n")


async def _failure(*flags: str) -> tuple[int, list[str]]:
    process = await _start(*flags)
    _, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, err.decode().splitlines()


async def test_what_is_missing_is_said_in_one_line(model_dir: Path) -> None:
    (model_dir / "tokenizer.json").unlink()

    code, lines = await _failure("--model", str(model_dir))

    assert code == 1
    assert lines == [f"gateway_svc: error: {model_dir}: tokenizer.json is missing"]


async def test_a_taken_port_is_said_in_one_line(model_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, lines = await _failure("--model", str(model_dir), "--port", str(port))

    assert code == 1
    assert lines == [f"gateway_svc: error: 127.0.0.1:{port}: Address already in use"]
