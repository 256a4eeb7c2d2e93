"""SchedulerService over gRPC: moves messages between streams and the engine loop.

Knows nothing about decisions; a scheduler without the lease answers UNAVAILABLE and names the
leader in the trailing metadata `segue-leader`. Invariant: no handler changes state: it posts
events, and what it sends was put into its session's queue after a commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from typing import Any, NoReturn, cast

import grpc

from scheduler_svc.config import SchedulerServiceConfig
from scheduler_svc.core.events import (
    CacheReset,
    Event,
    ExecutorRegistered,
    LaneDrained,
    PauseChanged,
    PauseState,
    PrefixCacheReset,
    RequestAborted,
    RequestsAttached,
    RequestsSubmitted,
    SessionOpened,
    SettingsChanged,
    SettingsRefused,
)
from scheduler_svc.lease import LeaseKeeper
from scheduler_svc.live_settings import FixedSetting, NoSuchSetting
from scheduler_svc.loop import EngineLoop, Envelope
from scheduler_svc.session_messages import message_to_proto
from scheduler_svc.sessions import GatewaySession, Sessions
from scheduler_svc.status import status_message
from segue import wire
from segue.grpc_server import LEADER_METADATA
from segue.v1 import scheduler_pb2, scheduler_pb2_grpc, types_pb2
from segue.wire import OUR_VERSIONS, ProtocolMismatch, ProtocolVersions

log = logging.getLogger("segue.scheduler")
Context = grpc.aio.ServicerContext[Any, Any]


class SchedulerService(scheduler_pb2_grpc.SchedulerServiceServicer):
    """`loop` is set while this process leads."""

    def __init__(
        self, config: SchedulerServiceConfig, sessions: Sessions, lease: LeaseKeeper
    ) -> None:
        self._config = config
        self._sessions = sessions
        self._lease = lease
        self.loop: EngineLoop | None = None

    def register(self, server: grpc.aio.Server) -> None:
        add = cast(Any, scheduler_pb2_grpc).add_SchedulerServiceServicer_to_server
        add(self, server)

    async def _refuse(self, context: Context) -> NoReturn:
        leader = self._lease.leader_address
        context.set_trailing_metadata(((LEADER_METADATA, leader),))
        await context.abort(grpc.StatusCode.UNAVAILABLE, f"not the leader; it is at {leader!r}")
        raise AssertionError("abort returns never")

    async def _require_loop(self, context: Context) -> EngineLoop:
        if self.loop is None:
            await self._refuse(context)
        return self.loop

    async def Session(
        self,
        request_iterator: AsyncIterator[scheduler_pb2.SessionRequest],
        context: Context,
    ) -> AsyncIterator[scheduler_pb2.SessionResponse]:
        """One gateway's stream. A newer one of the same gateway ends it."""
        loop = await self._require_loop(context)
        first = await anext(request_iterator, None)
        if first is None or first.WhichOneof("message") != "hello":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first message must be hello")
            return
        hello = first.hello
        if not hello.gateway_id or "|" in hello.gateway_id:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "bad gateway_id")
        protocol_version = await _agreed_version(hello, context)
        epoch, leader_id = loop.core.leader
        is_double = hello.epoch_seen == epoch and hello.leader_id_seen not in ("", leader_id)
        if hello.epoch_seen > epoch or is_double:  # H11
            loop.report_higher_epoch(hello.epoch_seen)
            await self._refuse(context)
        session = GatewaySession(hello.gateway_id, hello.session_id, protocol_version)
        self._sessions.open(session)
        attachments = tuple(wire.attachment_from_proto(item) for item in hello.attachments)
        opened = SessionOpened(hello.gateway_id, attachments, _now_ms())
        loop.post(Envelope(opened, session, is_hello=True))
        reader = asyncio.create_task(self._read(loop, session, request_iterator))
        alive = asyncio.create_task(self._keep_alive(session))
        try:
            while (message := await session.outgoing.get()) is not None:
                started = time.thread_time()
                response = message_to_proto(message)
                loop.timings.emit_s += time.thread_time() - started
                loop.timings.num_output_bytes += response.ByteSize()
                yield response
            yield scheduler_pb2.SessionResponse(
                goodbye=types_pb2.Goodbye(reason="this session has ended")
            )
        finally:
            self._sessions.close(session)
            for task in (reader, alive):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    async def _keep_alive(self, session: GatewaySession) -> None:
        while True:
            await asyncio.sleep(self._config.heartbeat_s)
            if self.loop is not None:
                session.outgoing.put_nowait(self.loop.alive())

    async def _read(
        self,
        loop: EngineLoop,
        session: GatewaySession,
        requests: AsyncIterator[scheduler_pb2.SessionRequest],
    ) -> None:
        """Post what the gateway asks for, while its session is the current one (H17)."""
        try:
            async for request in requests:
                if not self._sessions.is_current(session):
                    break
                event = _session_event(session.gateway_id, request)
                if event is not None:
                    loop.post(Envelope(event, session))
                elif request.WhichOneof("message") == "goodbye":
                    break
        except grpc.aio.AioRpcError as error:
            log.info("gateway %s: %s", session.gateway_id, error.code().name)
        finally:
            session.end()

    async def Register(
        self, request: scheduler_pb2.RegisterRequest, context: Context
    ) -> scheduler_pb2.RegisterResponse:
        loop = await self._require_loop(context)
        if not request.executor_id or not request.address:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "executor_id and address needed")
        epoch, leader_id = loop.core.leader
        if request.epoch_seen > epoch:
            loop.report_higher_epoch(request.epoch_seen)
        lane = loop.core.state.lanes.get(request.executor_id)
        if lane is None or lane.address != request.address:
            loop.post(Envelope(ExecutorRegistered(request.executor_id, request.address)))
        leader = types_pb2.Leader(epoch=epoch, leader_id=leader_id)
        return scheduler_pb2.RegisterResponse(leader=leader)

    async def GetStatus(
        self, request: scheduler_pb2.GetStatusRequest, context: Context
    ) -> scheduler_pb2.GetStatusResponse:
        return status_message(await self._require_loop(context), self._config)

    async def Pause(
        self, request: scheduler_pb2.PauseRequest, context: Context
    ) -> scheduler_pb2.PauseResponse:
        state = PauseState.PAUSED_ALL if request.pause_running else PauseState.PAUSED_NEW
        await (await self._require_loop(context)).ask(PauseChanged(state))
        return scheduler_pb2.PauseResponse(pause_state=state.value)

    async def Resume(
        self, request: scheduler_pb2.ResumeRequest, context: Context
    ) -> scheduler_pb2.ResumeResponse:
        await (await self._require_loop(context)).ask(PauseChanged(PauseState.UNPAUSED))
        return scheduler_pb2.ResumeResponse(pause_state=PauseState.UNPAUSED.value)

    async def ResetPrefixCache(
        self, request: scheduler_pb2.ResetPrefixCacheRequest, context: Context
    ) -> scheduler_pb2.ResetPrefixCacheResponse:
        loop = await self._require_loop(context)
        replies = await loop.ask(PrefixCacheReset(request.reset_running_requests))
        is_reset = any(isinstance(reply, CacheReset) and reply.is_reset for reply in replies)
        return scheduler_pb2.ResetPrefixCacheResponse(is_reset=is_reset)

    async def Drain(
        self, request: scheduler_pb2.DrainRequest, context: Context
    ) -> scheduler_pb2.DrainResponse:
        loop = await self._require_loop(context)
        lane = loop.core.state.lanes.get(request.executor_id)
        if lane is None:
            message = f"no executor {request.executor_id!r}"
            await context.abort(grpc.StatusCode.NOT_FOUND, message)
            raise AssertionError("abort returns never")
        num_before = lane.policy.num_unfinished() if lane.policy is not None else 0
        await loop.ask(LaneDrained(request.executor_id, _now_ms()))
        return scheduler_pb2.DrainResponse(num_requests_moved=num_before)

    async def GetConfiguration(
        self, request: scheduler_pb2.GetConfigurationRequest, context: Context
    ) -> scheduler_pb2.GetConfigurationResponse:
        loop = await self._require_loop(context)
        return scheduler_pb2.GetConfigurationResponse(settings=_setting_states(loop))

    async def ChangeConfiguration(
        self, request: scheduler_pb2.ChangeConfigurationRequest, context: Context
    ) -> scheduler_pb2.ChangeConfigurationResponse:
        loop = await self._require_loop(context)
        try:
            changes = loop.configuration.changes(request.values, request.unset_names)
        except NoSuchSetting as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except FixedSetting as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        else:
            for reply in await loop.ask(SettingsChanged(changes)):
                if isinstance(reply, SettingsRefused):
                    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, reply.reason)
        return scheduler_pb2.ChangeConfigurationResponse(settings=_setting_states(loop))


async def _agreed_version(hello: scheduler_pb2.SessionHello, context: Context) -> int:
    peer = ProtocolVersions.of_hello(hello.protocol_version, hello.newest_protocol_version)
    try:
        return OUR_VERSIONS.agree(peer)
    except ProtocolMismatch as error:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        raise AssertionError("abort returns never") from error


def _setting_states(loop: EngineLoop) -> list[scheduler_pb2.SettingState]:
    return [
        scheduler_pb2.SettingState(name=name, value=value, flag_value=flag, fixed_reason=reason)
        for name, value, flag, reason in loop.configuration.table(loop.core.state.settings)
    ]


def _session_event(gateway_id: str, request: scheduler_pb2.SessionRequest) -> Event | None:
    match request.WhichOneof("message"):
        case "submit":
            submit = request.submit
            return RequestsSubmitted(
                gateway_id,
                tuple(wire.submission_from_proto(item) for item in submit.submissions),
                tuple(wire.attachment_from_proto(item) for item in submit.delivered),
                _now_ms(),
            )
        case "abort":
            abort = request.abort
            return RequestAborted(gateway_id, abort.request_id, abort.reason, _now_ms())
        case "attach":
            items = tuple(wire.attachment_from_proto(item) for item in request.attach.attachments)
            return RequestsAttached(gateway_id, items, _now_ms())
        case _:
            return None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
