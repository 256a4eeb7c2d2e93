"""The real gateway, in this process, on a real port, in front of a scheduler stub.

Knows how to start and stop them. Invariant: all that was started has ended when the block is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import httpx
from openai import AsyncOpenAI

from gateway_svc.__main__ import build, make_http_server
from gateway_svc.config import GatewayConfig
from gateway_svc.gateway import Gateway
from gateway_svc.tokenizer import Tokenizer
from segue.model_files.model_directory import ModelDirectory
from segue.v1 import scheduler_pb2_grpc
from tests.scheduler_stub import SchedulerStub

if TYPE_CHECKING:
    from segue.tracing.tracer import Tracer

READY_TIMEOUT_S = 5.0


@dataclass(slots=True, frozen=True)
class RunningGateway:
    gateway: Gateway
    url: str
    http: httpx.AsyncClient
    openai: AsyncOpenAI


@contextlib.asynccontextmanager
async def serve_stub(stub: SchedulerStub, port: int = 0) -> AsyncIterator[str]:
    """The stub's address, while it serves."""
    server = grpc.aio.server()
    scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(stub, server)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    pump = asyncio.create_task(stub.run())
    try:
        yield f"127.0.0.1:{port}"
    finally:
        pump.cancel()
        await server.stop(0)


@contextlib.asynccontextmanager
async def serve_gateway(
    model_dir: Path,
    *schedulers: str,
    wait_ready: bool = True,
    tracer: Tracer | None = None,
    **options: Any,
) -> AsyncIterator[RunningGateway]:
    fast: dict[str, Any] = {"heartbeat_s": 0.05, "lease_ttl_s": 1.0, "scheduler_wait_s": 5.0}
    config = GatewayConfig(model=model_dir, schedulers=schedulers, **fast | options)
    model = ModelDirectory.load(model_dir)
    tokenizer = Tokenizer(model.tokenizer_path, model.vocab_size)
    gateway, front = build(config, model, tokenizer)
    server = make_http_server(front, tracer)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        session = asyncio.create_task(gateway.client.run())
        http_server = asyncio.create_task(server.serve(sockets=[listener]))
        http = httpx.AsyncClient(base_url=url, timeout=60)
        openai = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)
        try:
            if wait_ready:
                await until_ready(http)
            yield RunningGateway(gateway, url, http, openai)
        finally:
            await http.aclose()
            await openai.close()
            session.cancel()
            server.should_exit = True
            await asyncio.gather(session, http_server, return_exceptions=True)


async def until_ready(http: httpx.AsyncClient) -> None:
    async with asyncio.timeout(READY_TIMEOUT_S):
        while (await http.get("/ready")).status_code != 200:
            await asyncio.sleep(0.01)
