"""Services of two protocol versions, over real gRPC: as during an upgrade, in whatever order.

There is one version yet, so the second is made up: each end is told what it speaks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import pytest

from segue.grpc_server import open_channel
from segue.model_files.hand import write_hand_model
from segue.v1 import scheduler_pb2, scheduler_pb2_grpc
from segue.wire import OUR_VERSIONS, ProtocolVersions
from tests.integration.executor_stream import SchedulerEnd, running_executor
from tests.integration.leading_scheduler import running_scheduler
from tests.running_gateway import RunningGateway, serve_gateway

VERSION_1, VERSION_2 = ProtocolVersions(1, 1), ProtocolVersions(1, 2)
FAR_AHEAD = ProtocolVersions(3, 4)
SPEAKERS = {
    "scheduler": ("scheduler_svc.executor_client", "scheduler_svc.service"),
    "executor": ("executor_svc.service",),
    "gateway": ("gateway_svc.scheduler_client",),
}


class Upgrade:
    """Says who speaks which versions, and starts all three."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, model_dir: Path) -> None:
        self._monkeypatch = monkeypatch
        self._model_dir = model_dir
        self.stack = AsyncExitStack()

    def speaks(self, **versions: ProtocolVersions) -> None:
        for service, spoken in versions.items():
            for module in SPEAKERS[service]:
                self._monkeypatch.setattr(f"{module}.OUR_VERSIONS", spoken)

    async def start(self, *, wait_ready: bool = True) -> tuple[RunningGateway, str]:
        """The gateway, and the scheduler's address."""
        executor = await self.stack.enter_async_context(running_executor())
        address = await self.stack.enter_async_context(running_scheduler(executor.address))
        gateway = serve_gateway(
            self._model_dir, address, wait_ready=wait_ready, served_model_name=("hand",)
        )
        return await self.stack.enter_async_context(gateway), address


@pytest.fixture
async def upgrade(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Upgrade]:
    one = Upgrade(monkeypatch, write_hand_model(tmp_path))
    async with one.stack:
        yield one


async def _until_said(caplog: pytest.LogCaptureFixture, words: str, times: int = 1) -> None:
    async with asyncio.timeout(5):
        while caplog.text.count(words) < times:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("others", [VERSION_1, VERSION_2], ids=str)
@pytest.mark.parametrize("scheduler", [VERSION_1, VERSION_2], ids=str)
async def test_a_scheduler_and_its_neighbours_of_either_version_serve(
    upgrade: Upgrade, scheduler: ProtocolVersions, others: ProtocolVersions
) -> None:
    upgrade.speaks(scheduler=scheduler, executor=others, gateway=others)
    running, _ = await upgrade.start()
    answer = await running.openai.completions.create(model="hand", prompt="abc", max_tokens=1)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 1


# Of whom is asked, what the hello says, what is agreed. No newest: who asks knows one version.
HELLOS = pytest.mark.parametrize(
    "ours, newest, agreed",
    [(VERSION_1, 0, 1), (VERSION_2, 0, 1), (VERSION_2, 2, 2), (VERSION_1, 2, 1)],
    ids=str,
)


@HELLOS
async def test_an_executor_answers_with_the_newest_that_both_speak(
    upgrade: Upgrade, ours: ProtocolVersions, newest: int, agreed: int
) -> None:
    upgrade.speaks(executor=ours)
    async with running_executor() as executor:
        stream = executor.connect()
        answer = await stream.hello(protocol_version=1, newest_protocol_version=newest)
    assert answer.hello_ack.protocol_version == agreed


@HELLOS
async def test_a_scheduler_answers_with_the_newest_that_both_speak(
    upgrade: Upgrade, ours: ProtocolVersions, newest: int, agreed: int
) -> None:
    upgrade.speaks(scheduler=ours)
    hello = scheduler_pb2.SessionHello(
        protocol_version=1, newest_protocol_version=newest, gateway_id="g7", session_id="s"
    )
    async with running_scheduler("127.0.0.1:1") as address, open_channel(address) as channel:
        call = scheduler_pb2_grpc.SchedulerServiceStub(channel).Session()
        await call.write(scheduler_pb2.SessionRequest(hello=hello))
        answer = await call.read()
        call.cancel()
    assert answer.hello_ack.protocol_version == agreed


async def test_the_first_number_of_a_hello_is_one_that_a_strict_peer_knows(
    upgrade: Upgrade, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 1 once asked for exactly its own number there, and knew no other."""
    heard: list[tuple[int, int]] = []

    def of_hello(protocol_version: int, newest: int) -> ProtocolVersions:
        heard.append((protocol_version, newest))
        return VERSION_1

    monkeypatch.setattr(ProtocolVersions, "of_hello", of_hello)
    upgrade.speaks(scheduler=VERSION_2, executor=VERSION_1, gateway=VERSION_2)
    await upgrade.start()
    assert set(heard) == {(1, 2)}


async def test_a_gateway_that_is_too_new_is_refused_and_says_so_once(
    upgrade: Upgrade, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "segue.gateway")
    upgrade.speaks(scheduler=VERSION_2, executor=VERSION_2, gateway=FAR_AHEAD)
    running, _ = await upgrade.start(wait_ready=False)
    said = "FAILED_PRECONDITION protocol version 3 to 4, ours is 1 to 2"
    await _until_said(caplog, said, times=3)
    levels = [one.levelno for one in caplog.records if said in one.getMessage()]
    assert levels[:3] == [logging.WARNING, logging.DEBUG, logging.DEBUG]
    assert (await running.http.get("/ready")).status_code == 503


async def test_a_scheduler_that_is_too_new_is_refused_by_the_executor(
    upgrade: Upgrade, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "segue.scheduler")
    upgrade.speaks(scheduler=FAR_AHEAD, executor=VERSION_2, gateway=FAR_AHEAD)
    await upgrade.start(wait_ready=False)
    said = "executor e0: FAILED_PRECONDITION: protocol version 3 to 4, ours is 1 to 2"
    await _until_said(caplog, said)


async def test_an_answer_in_a_version_that_was_not_offered_is_not_taken(
    upgrade: Upgrade, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "segue.scheduler")
    upgrade.speaks(executor=_Stubborn(9, 9))
    await upgrade.start(wait_ready=False)
    await _until_said(caplog, f"executor e0: protocol version 9, ours is {OUR_VERSIONS}")


class _Stubborn(ProtocolVersions):
    def agree(self, peer: ProtocolVersions) -> int:
        return self.newest


async def test_versions_that_do_not_meet_are_a_refusal_by_status() -> None:
    async with running_executor() as executor:
        stream: SchedulerEnd = executor.connect()
        await stream.send_hello(protocol_version=99, newest_protocol_version=100)
        code, details = await stream.end()
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert details == f"protocol version 99 to 100, ours is {OUR_VERSIONS}"
