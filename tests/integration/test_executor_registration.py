"""An executor announces itself to every scheduler it knows, and to the leader that they name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from executor_svc.scheduler_client import Announcement, Registration
from segue.grpc_server import LEADER_METADATA, bind, make_server
from segue.v1 import scheduler_pb2, scheduler_pb2_grpc, types_pb2


class FakeScheduler(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Leads, unless it was told who does."""

    def __init__(self, leader_address: str | None = None) -> None:
        self.leader_address = leader_address
        self.requests: asyncio.Queue[scheduler_pb2.RegisterRequest] = asyncio.Queue()
        self.address = ""

    async def Register(
        self, request: scheduler_pb2.RegisterRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> scheduler_pb2.RegisterResponse:
        self.requests.put_nowait(request)
        if self.leader_address is not None:
            trailer = ((LEADER_METADATA, self.leader_address),)
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not the leader", trailer)
        return scheduler_pb2.RegisterResponse(leader=types_pb2.Leader(epoch=3, leader_id="a"))


@asynccontextmanager
async def serving(scheduler: FakeScheduler) -> AsyncIterator[FakeScheduler]:
    server = make_server()
    scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(scheduler, server)
    scheduler.address = f"127.0.0.1:{bind(server, '127.0.0.1:0')}"
    await server.start()
    try:
        yield scheduler
    finally:
        await server.stop(None)


@asynccontextmanager
async def registering(*addresses: str) -> AsyncIterator[None]:
    registration = Registration(
        addresses,
        Announcement("e0", "0001-abc", "127.0.0.1:1234"),
        epoch_seen=lambda: 7,
        heartbeat_s=0.02,
    )
    task = asyncio.create_task(registration.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_every_known_scheduler_hears_again_and_again() -> None:
    async with (
        serving(FakeScheduler()) as one,
        serving(FakeScheduler()) as other,
        registering(one.address, other.address),
    ):
        requests = [await s.requests.get() for s in (one, other, one, other)]
    assert requests[0] == scheduler_pb2.RegisterRequest(
        executor_id="e0", incarnation_id="0001-abc", address="127.0.0.1:1234", epoch_seen=7
    )
    assert all(request == requests[0] for request in requests)


async def test_leader_that_a_standby_names_is_told() -> None:
    """The list that an executor was started with may be older than the leader."""
    async with (
        serving(FakeScheduler()) as leader,
        serving(FakeScheduler(leader.address)) as standby,
        registering(standby.address),
    ):
        assert (await leader.requests.get()).executor_id == "e0"


async def test_scheduler_that_starts_late_is_found() -> None:
    late = FakeScheduler()
    async with serving(late):
        pass
    address = late.address
    async with registering(address):
        server = make_server()
        scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(late, server)
        bind(server, address)
        await server.start()
        assert (await late.requests.get()).executor_id == "e0"
        await server.stop(None)


async def test_dead_scheduler_does_not_hold_up_the_others() -> None:
    gone = FakeScheduler()
    async with serving(gone):
        pass
    async with serving(FakeScheduler()) as leader, registering(gone.address, leader.address):
        for _ in range(3):
            await leader.requests.get()
