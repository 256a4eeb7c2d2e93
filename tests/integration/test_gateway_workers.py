"""Several workers on one port, as real processes in front of a scheduler stub."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway_svc.workers import listen
from segue.model_files.hand import write_hand_model
from segue.serve_plan import free_ports
from tests.running_gateway import serve_stub
from tests.scheduler_stub import Reply, SchedulerStub
from tests.served import child_with

TEXT = "The quick brown fox jumps over the lazy dog."
URL = re.compile(r"workers on (http://\S+)")
POLL_S = 0.02
LISTENS = "0A"  # the kernel's TCP_LISTEN
BODY: dict[str, Any] = {"prompt": "p", "stream": True}

pytestmark = pytest.mark.timeout(60)


@dataclass(slots=True)
class Gateway:
    process: asyncio.subprocess.Process
    url: str
    metrics_ports: list[int]
    lines: list[str] = field(default_factory=list)

    def pid_of(self, gateway_id: str) -> int:
        """Of the worker with this id."""
        return child_with(self.process.pid, gateway_id)


@contextlib.asynccontextmanager
async def workers(model_dir: Path, stub: SchedulerStub, *flags: str) -> AsyncIterator[Gateway]:
    """Two, with a session each."""
    ports = free_ports(2)
    async with serve_stub(stub) as address:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gateway_svc", "--model", str(model_dir), "--port", "0"),
            *("--schedulers", address, "--heartbeat-s", "0.05", "--workers", "2"),
            *("--metrics-ports", ",".join(map(str, ports)), *flags),
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stderr is not None
        while (match := URL.search((await process.stderr.readline()).decode())) is None:
            pass
        gateway = Gateway(process, match[1], ports)
        reading = asyncio.create_task(_keep_lines(process.stderr, gateway.lines))
        try:
            await stub.until(lambda: {"g0.0", "g0.1"} <= stub.sessions.keys())
            await _until(lambda: num_listening(gateway.url) == 2)
            yield gateway
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
            reading.cancel()


def num_listening(url: str) -> int:
    """Sockets that listen on this port; each worker has its own, a while after its session."""
    port = httpx.URL(url).port
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].endswith(f":{port:04X}") and row[3] == LISTENS for row in rows)


async def _until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await asyncio.sleep(POLL_S)


async def _keep_lines(stream: asyncio.StreamReader, lines: list[str]) -> None:
    while line := await stream.readline():
        lines.append(line.decode().rstrip())


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    return write_hand_model(tmp_path / "hand")


@pytest.fixture
async def stub() -> SchedulerStub:
    stub = SchedulerStub(lambda submission: Reply(TEXT.encode()))
    stub.is_running = False
    return stub


def text_of(lines: list[str]) -> str:
    chunks = [line.removeprefix("data: ") for line in lines if line.startswith("data: {")]
    return "".join(json.loads(chunk)["choices"][0]["text"] for chunk in chunks)


async def ask(gateway: Gateway) -> str:
    """On a connection of its own, which the kernel gives to one of the workers."""
    async with httpx.AsyncClient(base_url=gateway.url, timeout=60) as http:
        answer = await http.post("/v1/completions", json={"prompt": "p"})
        return answer.json()["choices"][0]["text"]


async def test_all_workers_serve_on_the_port(stub: SchedulerStub, model_dir: Path) -> None:
    stub.is_running = True
    async with workers(model_dir, stub) as gateway:
        texts: list[str] = []
        while {request.owner for request in stub.requests.values()} != {"g0.0", "g0.1"}:
            texts.append(await ask(gateway))
    assert set(texts) == {TEXT}


async def test_metrics_are_of_one_worker_and_not_on_the_shared_port(
    stub: SchedulerStub, model_dir: Path
) -> None:
    """Counters of now one and now the other process would jump up and down."""
    stub.is_running = True
    async with workers(model_dir, stub) as gateway, httpx.AsyncClient(timeout=60) as http:
        for _ in range(6):
            await ask(gateway)
        counts: list[float] = []
        for port in gateway.metrics_ports:
            page = (await http.get(f"http://127.0.0.1:{port}/metrics")).text
            pattern = r"^vllm:request_success_total\{.*\} (\S+)$"
            counts.append(sum(map(float, re.findall(pattern, page, re.MULTILINE))))
        shared = await http.get(f"{gateway.url}/metrics")
        health = await http.get(f"{gateway.url}/health")
    assert sum(counts) == 6
    assert shared.status_code == 404
    assert "workers share this port" in shared.json()["error"]["message"]
    assert health.status_code == 200


async def test_a_killed_workers_stream_goes_on_through_the_same_port(
    stub: SchedulerStub, model_dir: Path
) -> None:
    """And the worker comes back, with its id, and takes nothing from whoever resumed."""
    lines: list[str] = []
    owner = ""
    async with workers(model_dir, stub) as gateway, httpx.AsyncClient(timeout=60) as http:
        with contextlib.suppress(httpx.RemoteProtocolError, httpx.ReadError):
            async with http.stream("POST", f"{gateway.url}/v1/completions", json=BODY) as response:
                stub.step(12)
                async for line in response.aiter_lines():
                    lines.append(line)
                    if line.startswith("data: "):
                        (owner,) = [request.owner for request in stub.requests.values()]
                        os.kill(gateway.pid_of(owner), signal.SIGKILL)
        # While it dies, its socket still takes connections, and resets them.
        await _until(lambda: f"worker {owner[-1]} ended with -9" in "\n".join(gateway.lines))
        seen = text_of(lines)
        assert seen == TEXT[:12]
        stub.is_running = True
        last_id = [line.removeprefix("id: ") for line in lines if line.startswith("id: ")][-1]
        answer = await http.get(
            f"{gateway.url}/v1/streams/{last_id.partition(';')[0]}",
            headers={"Last-Event-ID": last_id},
        )
        assert seen + text_of(answer.text.splitlines()) == TEXT
        assert answer.text.endswith("data: [DONE]\n\n")
        await stub.until(lambda: sum(hello.gateway_id == owner for hello in stub.hellos) == 2)


async def test_a_client_that_leaves_is_aborted_whichever_worker_it_had(
    stub: SchedulerStub, model_dir: Path
) -> None:
    async with workers(model_dir, stub) as gateway:
        for count in range(1, 5):
            async with (
                httpx.AsyncClient(timeout=60) as http,
                http.stream("POST", f"{gateway.url}/v1/completions", json=BODY),
            ):
                stub.step()
            await stub.until(lambda count=count: len(stub.aborts) == count)
    assert {abort.reason for abort in stub.aborts} == {"the client left"}


async def test_sigterm_lets_the_streams_of_all_workers_finish(
    stub: SchedulerStub, model_dir: Path
) -> None:
    async with workers(model_dir, stub) as gateway, contextlib.AsyncExitStack() as stack:
        responses: list[httpx.Response] = []
        while {request.owner for request in stub.requests.values()} != {"g0.0", "g0.1"}:
            http = await stack.enter_async_context(httpx.AsyncClient(timeout=60))
            url = f"{gateway.url}/v1/completions"
            responses.append(await stack.enter_async_context(http.stream("POST", url, json=BODY)))
        gateway.process.send_signal(signal.SIGTERM)
        await _until(lambda: sum("stopping" in line for line in gateway.lines) == 2)
        stub.is_running = True
        for response in responses:
            assert text_of([line async for line in response.aiter_lines()]) == TEXT
        assert await gateway.process.wait() == 0
        await stub.until(lambda: len(stub.goodbyes) == 2)  # what is on its way when they end
    assert stub.goodbyes == ["the gateway is stopping"] * 2


async def test_no_worker_outlives_the_one_that_started_it(
    stub: SchedulerStub, model_dir: Path
) -> None:
    async with workers(model_dir, stub) as gateway:
        pids = [gateway.pid_of(f"g0.{index}") for index in range(2)]
        gateway.process.kill()
        await gateway.process.wait()
        await _until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


async def test_a_port_that_is_taken_is_said_in_one_line(model_dir: Path) -> None:
    """Also by one who would share it: his clients are not ours."""
    with listen("127.0.0.1", 0, shared=True) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gateway_svc", "--model", str(model_dir)),
            *("--workers", "2", "--port", str(port)),
            stderr=asyncio.subprocess.PIPE,
        )
        _, err = await process.communicate()
    assert process.returncode == 1
    assert err.decode().splitlines() == [
        f"gateway_svc: error: 127.0.0.1:{port}: Address already in use"
    ]


async def test_a_worker_that_cannot_start_ends_all(model_dir: Path) -> None:
    (model_dir / "tokenizer.json").write_text('{"model": {}}')
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway_svc", "--model", str(model_dir)),
        *("--workers", "2", "--port", "0"),
        stderr=asyncio.subprocess.PIPE,
    )
    _, err = await process.communicate()
    assert process.returncode == 1
    assert "tokenizer.json" in err.decode()
    assert "Traceback" not in err.decode()
