"""Waits with bounds, refusals with true status codes, and clients that leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from segue.model_files.hand import write_hand_model
from segue.types import FinishReason
from segue.v1 import scheduler_pb2
from tests.running_gateway import RunningGateway, serve_gateway, serve_stub
from tests.scheduler_stub import Reply, SchedulerStub
from tests.streaming_client import StreamingClient

TEXT = "The quick brown fox jumps over the lazy dog."


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    return write_hand_model(tmp_path)


@pytest.fixture
async def stub() -> SchedulerStub:
    return SchedulerStub(lambda submission: Reply(TEXT.encode()))


@pytest.fixture
async def running(stub: SchedulerStub, model_dir: Path) -> AsyncIterator[RunningGateway]:
    async with serve_stub(stub) as address, serve_gateway(model_dir, address) as running:
        yield running


async def test_a_request_waits_for_a_scheduler_that_comes_up_late(
    model_dir: Path, free_port: int
) -> None:
    address = f"127.0.0.1:{free_port}"
    async with serve_gateway(model_dir, address, wait_ready=False) as running:
        assert (await running.http.get("/ready")).status_code == 503
        assert (await running.http.get("/health")).status_code == 200
        asked = asyncio.create_task(running.http.post("/v1/completions", json={"prompt": "abc"}))
        async with serve_stub(SchedulerStub(), free_port):
            answer = await asked

    assert answer.json()["choices"][0]["text"] == "abc"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_that_nobody_serves_is_told_to_come_back(
    model_dir: Path, free_port: int, stream: bool
) -> None:
    options: dict[str, Any] = {"wait_ready": False, "scheduler_wait_s": 0.2}
    async with serve_gateway(model_dir, f"127.0.0.1:{free_port}", **options) as running:
        body = {"prompt": "abc", "stream": stream}
        answer = await running.http.post("/v1/completions", json=body)

    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.json()["error"]["code"] == "service_unavailable"


@pytest.mark.parametrize("lacking", [{"has_executor": False}, {"is_draining": True}], ids=str)
async def test_without_an_executor_nothing_hangs(
    stub: SchedulerStub, model_dir: Path, lacking: dict[str, bool]
) -> None:
    """One that is being drained takes no more requests, and they would wait for another."""
    options: dict[str, Any] = {"scheduler_wait_s": 0.3, "stall_s": 0.2}
    async with serve_stub(stub) as address, serve_gateway(model_dir, address, **options) as running:
        for name, value in lacking.items():
            setattr(stub, name, value)
        async with asyncio.timeout(5):
            while (await running.http.get("/ready")).status_code != 503:
                await asyncio.sleep(0.01)
        answer = await running.http.post("/v1/completions", json={"prompt": "abc"})
        assert answer.status_code == 503
        stub.has_executor, stub.is_draining = True, False
        async with asyncio.timeout(5):
            while (await running.http.get("/ready")).status_code != 200:
                await asyncio.sleep(0.01)
        assert (await running.http.post("/v1/completions", json={"prompt": "a"})).is_success


async def test_a_leader_without_its_store_is_not_ready(
    stub: SchedulerStub, model_dir: Path
) -> None:
    """Nobody has to ask first: a balancer sends requests to where they would be served."""
    async with (
        serve_stub(stub) as address,
        serve_gateway(model_dir, address, stall_s=0.1) as running,
    ):
        stub.is_store_down = True
        async with asyncio.timeout(5):
            while (ready := await running.http.get("/ready")).status_code != 503:
                await asyncio.sleep(0.01)
            assert "no redis for" in ready.json()["reason"]
            stub.is_store_down = False
            while (await running.http.get("/ready")).status_code != 200:
                await asyncio.sleep(0.01)


async def test_work_that_does_not_move_is_not_ready(stub: SchedulerStub, model_dir: Path) -> None:
    async with (
        serve_stub(stub) as address,
        serve_gateway(model_dir, address, stall_s=0.3) as running,
    ):
        stub.is_running = False
        client = StreamingClient(running.http)
        async with asyncio.timeout(5):
            while (await running.http.get("/ready")).status_code != 503:
                await asyncio.sleep(0.01)
        assert "while requests wait" in (await running.http.get("/ready")).json()["reason"]
        stub.is_running = True
        await client.end()
        assert (await running.http.get("/ready")).status_code == 200


@pytest.mark.parametrize(
    "code, retry_after_ms, status",
    [
        (scheduler_pb2.REJECT_CODE_QUEUE_FULL, 1500, 429),
        (scheduler_pb2.REJECT_CODE_TOO_LONG, 0, 400),
        (scheduler_pb2.REJECT_CODE_INVALID, 0, 400),
        (scheduler_pb2.REJECT_CODE_UNSUPPORTED, 0, 400),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_refusal_has_its_true_status_streaming_or_not(
    running: RunningGateway,
    stub: SchedulerStub,
    code: scheduler_pb2.RejectCode,
    retry_after_ms: int,
    status: int,
    stream: bool,
) -> None:
    stub.reject = scheduler_pb2.Rejected(code=code, retry_after_ms=retry_after_ms, message="no")
    answer = await running.http.post(
        "/v1/completions", json={"prompt": "a", "stream": stream, "n": 2}
    )

    assert answer.status_code == status
    assert answer.json()["error"]["message"] == "no"
    assert answer.headers.get("retry-after") == ("2" if status == 429 else None)
    assert running.gateway.client.ledger.num_waiting == 0


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_is_aborted_at_once(
    running: RunningGateway, stub: SchedulerStub, stream: bool
) -> None:
    stub.is_running = False
    async with httpx.AsyncClient(base_url=running.url) as leaving:
        body = {"prompt": "p", "stream": stream, "n": 2}
        asked = asyncio.create_task(leaving.post("/v1/completions", json=body))
        await stub.until(lambda: len(stub.requests) == 2)
        stub.step(3)
        asked.cancel()
    await stub.until(lambda: len(stub.aborts) == 2)

    assert {request.finish.reason for request in stub.requests.values() if request.finish} == {
        FinishReason.ABORT
    }
    assert {abort.num_delivered_tokens for abort in stub.aborts} <= {0, 3}


async def test_an_abort_that_was_lost_with_its_session_is_sent_again(
    running: RunningGateway, stub: SchedulerStub
) -> None:
    stub.is_running = False
    client = StreamingClient(running.http)
    await stub.until(lambda: stub.requests)
    stub.step(3)
    await client.until(3)
    stub.leads = False
    stub.drop_sessions()
    await client.leave()
    async with asyncio.timeout(5):
        while not running.gateway.client.ledger.to_abort():
            await asyncio.sleep(0.01)
    assert stub.aborts == []
    stub.leads = True
    await stub.until(lambda: stub.aborts)

    (request,) = stub.requests.values()
    assert request.abort_reason == "the client left"
