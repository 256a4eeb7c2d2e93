"""`segue chat` prints an answer once, whatever happens to the connection."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from segue.model_files.hand import write_hand_model
from segue.process_identity import ProcessIdentity
from segue.state_directory import ServeRecord, StateDirectory
from tests.running_gateway import RunningGateway, serve_gateway, serve_stub
from tests.scheduler_stub import Reply, SchedulerStub
from tests.tcp_proxy import TcpProxy

ROOT = Path(__file__).parents[2]
TEXT = "Grüße an 漢字 und 👩‍👩‍👧‍👦"


@pytest.fixture
async def stub() -> SchedulerStub:
    return SchedulerStub(lambda submission: Reply(TEXT.encode()))


@pytest.fixture
async def running(stub: SchedulerStub, tmp_path: Path) -> AsyncIterator[RunningGateway]:
    model_dir = write_hand_model(tmp_path)
    async with serve_stub(stub) as address, serve_gateway(model_dir, address) as running:
        yield running


async def _start(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "segue", "chat", *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env=os.environ | {"PYTHONIOENCODING": "utf-8"},
    )


async def _chat(url: str, *arguments: str, typed: str = "") -> tuple[int, str, str]:
    return await _run("--url", url, *arguments, typed=typed)


async def _run(*arguments: str, typed: str = "") -> tuple[int, str, str]:
    process = await _start(*arguments)
    out, err = await process.communicate(typed.encode())
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_one_question(running: RunningGateway, stub: SchedulerStub) -> None:
    code, out, err = await _chat(running.url, "--system", "be kind", "hello", "you")

    assert (code, out, err) == (0, TEXT + "\n", "")
    (request,) = stub.requests.values()
    prompt = bytes(request.submission.prompt_token_ids).decode()
    assert prompt == "system: be kind\nuser: hello you\nassistant: "


async def test_it_samples_coolly_unless_told_otherwise(
    running: RunningGateway, stub: SchedulerStub
) -> None:
    await _chat(running.url, "hello")
    await _chat(running.url, "--temperature", "1", "hello")
    params = [request.submission.sampling_params for request in stub.requests.values()]
    assert [one.temperature for one in params] == [pytest.approx(0.2), 1.0]


async def test_a_conversation_remembers(running: RunningGateway, stub: SchedulerStub) -> None:
    code, out, _ = await _chat(running.url, typed="one\n\ntwo\n")

    assert code == 0
    assert out.count(TEXT) == 2
    prompts = [bytes(r.submission.prompt_token_ids).decode() for r in stub.requests.values()]
    assert prompts[1] == f"user: one\nassistant: {TEXT}\nuser: two\nassistant: "


async def test_an_error_is_one_line(running: RunningGateway) -> None:
    code, out, err = await _chat(running.url, "--model", "gpt-9", "hello")

    assert (code, out) == (1, "")
    assert err.startswith("segue chat: the model 'gpt-9' is not served here")
    assert len(err.splitlines()) == 1


async def test_a_state_directory_says_where(running: RunningGateway, tmp_path: Path) -> None:
    served, none = tmp_path / "served", tmp_path / "none"
    identity = ProcessIdentity.of(os.getpid())
    assert identity is not None
    directory = StateDirectory.open(served)
    directory.write_record(ServeRecord(identity, url=running.url))
    directory.close()

    assert await _run("--state-dir", str(served), "hello") == (0, TEXT + "\n", "")
    error = f"segue chat: nothing is served from {none}\n"
    assert await _run("--state-dir", str(none), "hello") == (1, "", error)
    code, _, _ = await _run("--state-dir", str(served), "--url", running.url, "hello")
    assert code == 2


async def test_the_url_is_taken_as_serve_prints_it(running: RunningGateway) -> None:
    code, out, err = await _chat(f"{running.url}/v1", "hello")

    assert (code, out, err) == (0, TEXT + "\n", "")


@pytest.mark.parametrize("url", ["http://127.0.0.1:{port}", "http://[::1", "nonsense"])
async def test_nobody_there_is_one_line(free_port: int, url: str) -> None:
    code, out, err = await _chat(url.format(port=free_port), "hello")

    assert (code, out) == (1, "")
    assert len(err.splitlines()) == 1


async def test_a_broken_connection_is_taken_up_where_it_was(
    running: RunningGateway, stub: SchedulerStub
) -> None:
    """The gateway is kept from aborting, as one that is killed with its connections."""
    running.gateway.client.release = lambda live, reason: None  # type: ignore[method-assign]
    stub.is_running = False
    proxy = await TcpProxy("127.0.0.1", int(running.url.rpartition(":")[2])).start()
    process = await _start("--url", f"http://127.0.0.1:{proxy.port}", "hello")
    await stub.until(lambda: stub.requests)
    stub.step(11)
    assert process.stdout is not None
    printed = await process.stdout.readexactly(11)
    proxy.cut()
    stub.is_running = True
    rest, err = await process.communicate()
    await proxy.stop()

    assert ((printed + rest).decode(), err) == (TEXT + "\n", b"")
    assert process.returncode == 0
