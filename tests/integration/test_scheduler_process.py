"""The scheduler as it is started: before its Redis, and against one that it must refuse."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from segue.grpc_server import SCHEDULER_SERVICE, open_channel
from segue.serve_plan import free_ports
from tests.redis_process import RedisProcess, redis_binary, valkey_binary

Status = health_pb2.HealthCheckResponse.ServingStatus
POLL_S = 0.05


@contextlib.asynccontextmanager
async def scheduler(redis_url: str, port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "scheduler_svc", "--listen", f"127.0.0.1:{port}"),
        *("--redis-url", redis_url, "--no-has-peers", "--heartbeat-s", "0.05"),
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def status(channel: grpc.aio.Channel, service: str) -> int:
    stub: Any = health_pb2_grpc.HealthStub(channel)
    request = health_pb2.HealthCheckRequest(service=service)
    return (await stub.Check(request, timeout=20, wait_for_ready=True)).status


async def until(channel: grpc.aio.Channel, service: str, wanted: int) -> None:
    while await status(channel, service) != wanted:
        await asyncio.sleep(POLL_S)


@pytest.fixture
def binary() -> str:
    found = redis_binary() or valkey_binary()
    if found is None:
        pytest.skip("no redis and no valkey server here")
    return found


@pytest.mark.timeout(60)
async def test_it_waits_for_a_redis_that_comes_later(binary: str) -> None:
    """Alive and not ready: a cluster starts nothing in order, and a crash costs a back-off."""
    port, redis_port = free_ports(2)
    options = ("--port", str(redis_port), "--bind", "127.0.0.1", "--appendonly", "yes")
    redis = RedisProcess(binary, *options)
    try:
        async with (
            scheduler(f"redis://127.0.0.1:{redis_port}/0", port) as process,
            open_channel(f"127.0.0.1:{port}") as channel,
        ):
            await until(channel, SCHEDULER_SERVICE, Status.NOT_SERVING)
            assert await status(channel, "") == Status.SERVING
            await asyncio.to_thread(redis.start)
            await until(channel, SCHEDULER_SERVICE, Status.SERVING)
            process.terminate()
            assert await process.wait() == 0
    finally:
        redis.stop()


@pytest.mark.timeout(60)
async def test_a_redis_that_evicts_is_refused_in_one_line(binary: str) -> None:
    redis = RedisProcess(binary, "--maxmemory-policy", "allkeys-lru").start()
    try:
        async with scheduler(redis.url, free_ports(1)[0]) as process:
            assert process.stderr is not None
            said = (await process.stderr.read()).decode()
            assert await process.wait() == 1
    finally:
        redis.stop()
    assert "maxmemory-policy is allkeys-lru" in said
    assert "Traceback" not in said
