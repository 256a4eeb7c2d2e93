"""Calls the unary RPCs of whichever scheduler leads.

Knows a list of addresses; knows nothing about requests or streams. Invariant: each call goes to at
most one leader, and what fails is one readable line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import grpc

from segue.grpc_server import LEADER_METADATA, open_channel
from segue.grpc_tls import TlsFiles
from segue.v1 import scheduler_pb2, scheduler_pb2_grpc

_TRY_THE_NEXT = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})


class AdminError(Exception):
    """The call failed; the message is one readable line."""


class NoLeader(AdminError):
    """No scheduler that we know leads at the moment."""


class AdminClient:
    """One channel for each call: these are rare, and a scheduler may be another one by then."""

    def __init__(
        self, addresses: Sequence[str], timeout_s: float = 5.0, tls: TlsFiles | None = None
    ) -> None:
        self._addresses = list(addresses)
        self._timeout_s = timeout_s
        self._tls = tls

    async def get_status(self) -> scheduler_pb2.GetStatusResponse:
        return await self._call("GetStatus", scheduler_pb2.GetStatusRequest())

    async def pause(self, *, pause_running: bool) -> str:
        request = scheduler_pb2.PauseRequest(pause_running=pause_running)
        return (await self._call("Pause", request)).pause_state

    async def resume(self) -> str:
        return (await self._call("Resume", scheduler_pb2.ResumeRequest())).pause_state

    async def reset_prefix_cache(self, *, reset_running_requests: bool) -> bool:
        request = scheduler_pb2.ResetPrefixCacheRequest(
            reset_running_requests=reset_running_requests
        )
        return (await self._call("ResetPrefixCache", request)).is_reset

    async def drain(self, executor_id: str) -> int:
        request = scheduler_pb2.DrainRequest(executor_id=executor_id)
        return (await self._call("Drain", request)).num_requests_moved

    async def get_configuration(self) -> list[scheduler_pb2.SettingState]:
        request = scheduler_pb2.GetConfigurationRequest()
        return list((await self._call("GetConfiguration", request)).settings)

    async def change_configuration(
        self, values: Mapping[str, str], unset: Sequence[str] = ()
    ) -> list[scheduler_pb2.SettingState]:
        """All or nothing; what is answered is committed."""
        request = scheduler_pb2.ChangeConfigurationRequest(values=values, unset_names=unset)
        return list((await self._call("ChangeConfiguration", request)).settings)

    async def _call(self, method: str, request: Any) -> Any:
        """Asks one scheduler after the other, and whom they name, until one leads."""
        asked: list[str] = []
        named: list[str] = []
        reasons: list[str] = []
        while address := next((a for a in [*named, *self._addresses] if a not in asked), None):
            asked.append(address)
            try:
                async with open_channel(address, self._tls) as channel:
                    stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
                    return await getattr(stub, method)(request, timeout=self._timeout_s)
            except grpc.aio.AioRpcError as error:
                details = error.details() or error.code().name
                if error.code() not in _TRY_THE_NEXT:
                    raise AdminError(f"scheduler {address}: {details}") from error
                reasons.append(f"{address}: {details}")
                named += _leader_addresses(error)
        raise NoLeader(f"no scheduler leads ({'; '.join(reasons)})")


def _leader_addresses(error: grpc.aio.AioRpcError) -> list[str]:
    pairs = error.trailing_metadata() or ()
    return [
        value if isinstance(value, str) else value.decode()
        for key, value in pairs
        if key == LEADER_METADATA and value
    ]
