"""Tells every scheduler it knows where this executor is, again and again.

Knows nothing about steps: the scheduler that leads dials back. Invariant: no answer changes what
this executor obeys; an address is asked on for ever if it was configured, and only while it
answers if it was learned from a scheduler that does not lead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import grpc

from segue.grpc_server import LEADER_METADATA, open_channel
from segue.grpc_tls import TlsFiles
from segue.v1 import scheduler_pb2, scheduler_pb2_grpc

log = logging.getLogger("segue.executor")


@dataclass(slots=True, frozen=True)
class Announcement:
    """Who announces itself; `address` is where schedulers dial back."""

    executor_id: str
    incarnation_id: str
    address: str


class Registration:
    """`epoch_seen` is asked anew for each heartbeat."""

    def __init__(
        self,
        addresses: Iterable[str],
        announcement: Announcement,
        *,
        epoch_seen: Callable[[], int],
        heartbeat_s: float,
        tls: TlsFiles | None = None,
    ) -> None:
        self._configured = frozenset(addresses)
        self._known: set[str] = set()
        self._announcement = announcement
        self._tls = tls
        self._epoch_seen = epoch_seen
        self._heartbeat_s = heartbeat_s
        self._epoch_registered = 0

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            for address in sorted(self._configured):
                self._start(group, address)

    def _start(self, group: asyncio.TaskGroup, address: str) -> None:
        if address not in self._known:
            self._known.add(address)
            group.create_task(self._announce(group, address))

    async def _announce(self, group: asyncio.TaskGroup, address: str) -> None:
        async with open_channel(address, self._tls) as channel:
            stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
            while True:
                is_known = await self._register(group, stub, address)
                if not is_known and address not in self._configured:
                    break
                await asyncio.sleep(self._heartbeat_s)
        self._known.discard(address)

    async def _register(
        self,
        group: asyncio.TaskGroup,
        stub: scheduler_pb2_grpc.SchedulerServiceStub,
        address: str,
    ) -> bool:
        """Whether somebody answered there."""
        request = scheduler_pb2.RegisterRequest(
            executor_id=self._announcement.executor_id,
            incarnation_id=self._announcement.incarnation_id,
            address=self._announcement.address,
            epoch_seen=self._epoch_seen(),
        )
        timeout_s = max(1.0, 2 * self._heartbeat_s)
        try:
            response = await stub.Register(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            leader_address = _leader_address(error)
            if leader_address:
                self._start(group, leader_address)
                return True
            log.debug("scheduler %s: %s %s", address, error.code().name, error.details())
            return error.code() is not grpc.StatusCode.UNAVAILABLE
        if response.leader.epoch > self._epoch_registered:
            self._epoch_registered = response.leader.epoch
            log.info("registered at %s, epoch %d", address, response.leader.epoch)
        return True


def _leader_address(error: grpc.aio.AioRpcError) -> str:
    for key, value in error.trailing_metadata() or ():
        if key == LEADER_METADATA:
            return value if isinstance(value, str) else value.decode()
    return ""
