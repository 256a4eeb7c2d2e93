"""Mutual TLS on a real server: who gets in, whom a client believes, and how a probe asks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from segue.grpc_server import SCHEDULER_SERVICE, Health, bind, make_server, open_channel
from segue.grpc_tls import EXECUTOR_NAME, SCHEDULER_NAME, TlsConfig, TlsFileError, TlsFiles
from tests.certificates import Authority

Status = health_pb2.HealthCheckResponse.ServingStatus


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


@asynccontextmanager
async def serving(tls: TlsFiles, health_port: int = 0) -> AsyncIterator[str]:
    server = make_server()
    health = Health(server, [SCHEDULER_SERVICE])
    address = f"127.0.0.1:{bind(server, '127.0.0.1:0', tls)}"
    await health.listen(f"127.0.0.1:{health_port}" if health_port else "")
    await health.set_ready(is_ready=False)
    await server.start()
    try:
        yield address
    finally:
        await health.stop()
        await server.stop(None)


async def ask(channel: grpc.aio.Channel, service: str = "") -> int:
    stub: Any = health_pb2_grpc.HealthStub(channel)
    return (await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=30)).status


async def is_refused(address: str, tls: TlsFiles | None, name: str = SCHEDULER_NAME) -> bool:
    async with open_channel(address, tls, name) as channel:
        try:
            await ask(channel)
        except grpc.aio.AioRpcError as error:
            return error.code() is grpc.StatusCode.UNAVAILABLE
    return False


async def test_peers_of_one_authority_speak(authority: Authority) -> None:
    async with serving(authority.issue(SCHEDULER_NAME)) as address:
        assert not await is_refused(address, authority.issue("segue-gateway"))


async def test_another_role_is_not_believed(authority: Authority) -> None:
    """A stolen certificate of an executor makes no scheduler."""
    async with serving(authority.issue(EXECUTOR_NAME)) as address:
        own = authority.issue("segue-gateway")
        assert await is_refused(address, own, SCHEDULER_NAME)
        assert not await is_refused(address, own, EXECUTOR_NAME)


async def test_who_has_no_certificate_of_ours_gets_no_answer(
    authority: Authority, tmp_path: Path
) -> None:
    own = authority.issue(SCHEDULER_NAME)
    foreign = Authority(tmp_path / "theirs").issue("segue-gateway")
    async with serving(own) as address:
        assert await is_refused(address, None)
        assert await is_refused(address, TlsFiles(foreign.cert, foreign.key, own.ca))
        assert not await is_refused(address, own)


async def test_a_server_of_another_authority_is_not_believed(
    authority: Authority, tmp_path: Path
) -> None:
    async with serving(Authority(tmp_path / "theirs").issue(SCHEDULER_NAME)) as address:
        assert await is_refused(address, authority.issue("segue-gateway"))


async def test_a_renewed_certificate_is_used_without_a_restart(
    authority: Authority, tmp_path: Path
) -> None:
    """The authority is changed as well: with the old files nobody would understand each other."""
    own = authority.issue(SCHEDULER_NAME)
    async with serving(own) as address:
        assert not await is_refused(address, own)
        renewed = Authority(tmp_path / "next").issue(SCHEDULER_NAME)
        assert await is_refused(address, renewed)
        for new, old in ((renewed.cert, own.cert), (renewed.key, own.key), (renewed.ca, own.ca)):
            old.write_bytes(new.read_bytes())
        assert not await is_refused(address, renewed)


async def test_probes_ask_without_a_certificate(authority: Authority, free_port: int) -> None:
    """On a port of its own, that answers nothing else; alive and ready are two answers."""
    tls = authority.issue(SCHEDULER_NAME)
    async with serving(tls, free_port), open_channel(f"127.0.0.1:{free_port}") as channel:
        assert await ask(channel) == Status.SERVING
        assert await ask(channel, SCHEDULER_SERVICE) == Status.NOT_SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/segue.v1.SchedulerService/Pause")(b"", timeout=30)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_files_that_are_no_good_are_named(authority: Authority, tmp_path: Path) -> None:
    own = authority.issue(SCHEDULER_NAME)
    missing = TlsFiles(own.cert, tmp_path / "none", own.ca)
    with pytest.raises(TlsFileError, match=r"none: No such file"):
        bind(make_server(), "127.0.0.1:0", missing)
    (tmp_path / "text").write_text("hello")
    with pytest.raises(TlsFileError, match="not in PEM format"):
        TlsFiles(own.cert, own.key, tmp_path / "text").check()


def test_all_three_files_or_none() -> None:
    with pytest.raises(ValueError, match="together or not at all"):
        TlsConfig(tls_cert=Path("a"))
    assert TlsConfig().tls is None
