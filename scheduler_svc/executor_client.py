"""The scheduler's end of an executor's stream: dials, shakes hands, sends steps, reads results.

Knows nothing about what is planned. Invariant: what is sent was committed before; the cursor (last
step sent) is set by a handshake and moves only forward. A stream that fails holds up no other.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc

from scheduler_svc.config import SchedulerServiceConfig
from scheduler_svc.core.engine_core import EngineCore
from scheduler_svc.core.events import (
    Event,
    ExecutorConnected,
    GenerationEnded,
    LaneOpened,
    LaneRefused,
    ModelOutputReceived,
)
from scheduler_svc.core.lane import Lane, LaneStatus
from segue import wire
from segue.grpc_server import execute_stub, open_channel
from segue.grpc_tls import EXECUTOR_NAME
from segue.v1 import executor_pb2, types_pb2
from segue.wire import OUR_VERSIONS, ProtocolMismatch

log = logging.getLogger("segue.scheduler")
REDIAL_S = (0.1, 0.2, 0.3)
REFUSED_REDIAL_S = (0.5, 1.0, 2.0, 5.0)  # by then it may be another process, with other flags

Post = Callable[[Event], None]
Message = bytes | executor_pb2.ExecuteRequest


class StreamEnded(Exception):
    """This stream is of no use any more; a new one is dialled."""


@dataclass(slots=True, eq=False)
class ExecutorStream:
    """One stream. `sent_step_id` is its cursor; None until the lane is opened on it.

    `number` is never used twice: an answer to what was said on another stream is not for this one.
    """

    executor_id: str
    number: int
    epoch: int
    outgoing: asyncio.Queue[Message | None] = field(default_factory=asyncio.Queue[Message | None])
    sent_step_id: int | None = None
    heard_at: float = field(default_factory=time.monotonic)
    has_ended: bool = False
    is_refused: bool = False

    async def requests(self) -> AsyncIterator[Message]:
        while (message := await self.outgoing.get()) is not None:
            yield message

    def end(self) -> None:
        self.has_ended = True
        self.outgoing.put_nowait(None)


class Executors:
    """All lanes' streams. `watch` keeps a dialling task for each lane that the core knows."""

    def __init__(self, config: SchedulerServiceConfig, model_digest: str = "") -> None:
        self._config = config
        self._model_digest = model_digest
        self._streams: dict[str, ExecutorStream] = {}
        self._num_streams = 0
        self.num_step_bytes = 0
        self.num_result_bytes = 0
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._refusals: dict[str, str] = {}  # why, of those that are not wanted; told once
        self._absent_since: dict[str, float] = {}
        self._head_since: dict[str, tuple[int, float]] = {}
        self._last_tick = time.monotonic()
        self._core: EngineCore | None = None
        self._post: Post | None = None
        self._on_refused: Callable[[int], None] | None = None

    def use(self, config: SchedulerServiceConfig) -> None:
        """Settings were changed: how long is waited."""
        self._config = config

    def start(self, core: EngineCore, post: Post, on_refused: Callable[[int], None]) -> None:
        self._core, self._post, self._on_refused = core, post, on_refused

    def ready(self) -> list[str]:
        """Lanes whose executor is connected and opened: steps can be planned for them."""
        return [e for e, s in self._streams.items() if s.sent_step_id is not None]

    def watch(self) -> None:
        """Dial lanes that nobody dials yet. Called after each commit: lanes come by commits."""
        assert self._core is not None
        for executor_id, lane in self._core.state.lanes.items():
            if executor_id not in self._tasks and lane.address:
                task = asyncio.create_task(self._keep_connected(lane), name=f"dial {executor_id}")
                self._tasks[executor_id] = task

    def send_steps(self) -> None:
        """Send each opened stream the committed steps that lie after its cursor."""
        assert self._core is not None
        self.watch()
        for executor_id, stream in self._streams.items():
            if stream.sent_step_id is None:
                continue
            for step in self._core.state.lanes[executor_id].planned:
                if step.plan.step_id > stream.sent_step_id:
                    stream.outgoing.put_nowait(step.body)
                    self.num_step_bytes += len(step.body)
                    stream.sent_step_id = step.plan.step_id

    def opened(self, reply: LaneOpened) -> None:
        """The lane's generation is committed: bind the stream to it, and go on from what it has."""
        stream = self._streams.get(reply.executor_id)
        if stream is None or stream.number != reply.connection:
            return  # the stream that said hello has ended; another hello is to be answered
        message = executor_pb2.Open(
            generation=wire.generation_to_proto(reply.generation),
            next_step_id=reply.next_step_id,
            results_after_step_id=reply.results_after_step_id,
            depth=2,
        )
        stream.outgoing.put_nowait(executor_pb2.ExecuteRequest(open=message))
        stream.sent_step_id = reply.last_step_id
        verb = "opened" if reply.is_new else "goes on with"
        number = reply.generation
        self._refusals.pop(reply.executor_id, None)
        log.info(
            "executor %s %s generation %d.%d after step %d",
            reply.executor_id,
            verb,
            number.epoch,
            number.number,
            reply.last_step_id,
        )
        if reply.is_new:
            self._warn_of_no_swap_space(reply.executor_id)

    def refused(self, reply: LaneRefused) -> None:
        is_news = self._refusals.get(reply.executor_id) != reply.reason
        self._refusals[reply.executor_id] = reply.reason
        level = logging.ERROR if is_news else logging.DEBUG
        log.log(level, "executor %s is refused: %s", reply.executor_id, reply.reason)
        stream = self._streams.get(reply.executor_id)
        if stream is not None and stream.number == reply.connection:
            stream.is_refused = True
            self._end_stream(reply.executor_id)

    def reconnect_all(self) -> None:
        for executor_id in list(self._streams):
            self._end_stream(executor_id)

    def post_losses(self, now_ms: int) -> None:
        """Give up lanes that were away too long, and steps without an answer for too long.

        A gap between two ticks is time in which this process did not run: it is nobody's silence.
        """
        assert self._core is not None
        now = time.monotonic()
        gap = now - self._last_tick
        self._last_tick = now
        if gap > self._config.lease_ttl_s:
            self._absent_since.clear()
            self._head_since.clear()
            for stream in self._streams.values():
                stream.heard_at = now
            return
        for executor_id, stream in list(self._streams.items()):
            if now - stream.heard_at > self._config.lease_ttl_s:
                log.warning("executor %s is silent, it is dialled again", executor_id)
                self._end_stream(executor_id)
        others = [lane for lane in self._core.state.lanes.values() if lane.is_open]
        for lane in others:
            self._post_loss(lane, now, now_ms, has_other=len(others) > 1)

    def _post_loss(self, lane: Lane, now: float, now_ms: int, *, has_other: bool) -> None:
        executor_id = lane.executor_id
        stream = self._streams.get(executor_id)
        if stream is not None and stream.sent_step_id is not None:
            self._absent_since.pop(executor_id, None)
        elif has_other and lane.status is not LaneStatus.LOST:
            since = self._absent_since.setdefault(executor_id, now)
            if now - since > self._config.executor_grace_s:
                self._give_up(lane, "its executor is away", now_ms)
        if not lane.planned:
            self._head_since.pop(executor_id, None)
            return
        head = lane.planned[0].plan.step_id
        step_id, since = self._head_since.get(executor_id, (0, now))
        if step_id != head:
            self._head_since[executor_id] = (head, now)
        elif now - since > self._config.step_timeout_s:
            self._give_up(lane, f"step {head} had no answer in time", now_ms)

    def _give_up(self, lane: Lane, cause: str, now_ms: int) -> None:
        assert lane.generation is not None
        assert self._post is not None
        log.warning("executor %s is given up: %s", lane.executor_id, cause)
        self._absent_since.pop(lane.executor_id, None)
        self._head_since.pop(lane.executor_id, None)
        self._post(GenerationEnded(lane.executor_id, lane.generation, cause, now_ms))
        self._end_stream(lane.executor_id)

    def _end_stream(self, executor_id: str) -> None:
        stream = self._streams.pop(executor_id, None)
        if stream is not None:
            stream.end()

    def _warn_of_no_swap_space(self, executor_id: str) -> None:
        assert self._core is not None
        capacity = self._core.state.lanes[executor_id].capacity
        if self._config.preemption_mode == "swap" and capacity and not capacity.num_cpu_blocks:
            log.warning(
                "executor %s has no blocks to swap out to (--num-cpu-blocks, --swap-space-bytes): "
                "what is preempted is computed again",
                executor_id,
            )

    async def _keep_connected(self, lane: Lane) -> None:
        attempt = 0
        while True:
            assert self._core is not None
            self._num_streams += 1
            stream = ExecutorStream(lane.executor_id, self._num_streams, self._core.leader[0])
            try:
                async with open_channel(lane.address, self._config.tls, EXECUTOR_NAME) as channel:
                    await self._talk(lane, stream, execute_stub(channel))
            except (grpc.aio.AioRpcError, StreamEnded, ProtocolMismatch) as error:
                level = logging.DEBUG if attempt else logging.INFO
                log.log(level, "executor %s: %s", lane.executor_id, _one_line(error))
            finally:
                if self._streams.get(lane.executor_id) is stream:
                    del self._streams[lane.executor_id]
            attempt = 0 if stream.sent_step_id is not None else attempt + 1
            pauses = REFUSED_REDIAL_S if stream.is_refused else REDIAL_S
            await asyncio.sleep(pauses[min(attempt, len(pauses) - 1)])

    async def _talk(
        self,
        lane: Lane,
        stream: ExecutorStream,
        execute: grpc.aio.StreamStreamMultiCallable[Any, Any],
    ) -> None:
        """One stream's life: hello, then whatever comes, until it ends."""
        assert self._core is not None
        epoch, leader_id = stream.epoch, self._core.leader[1]
        hello = executor_pb2.ExecutorHello(
            protocol_version=OUR_VERSIONS.oldest,
            newest_protocol_version=OUR_VERSIONS.newest,
            deployment_id=self._config.deployment,
            leader=types_pb2.Leader(epoch=epoch, leader_id=leader_id),
            model_digest=self._model_digest,
            executor_id=lane.executor_id,
        )
        stream.outgoing.put_nowait(executor_pb2.ExecuteRequest(hello=hello))
        alive = asyncio.create_task(self._send_alive(stream, epoch))
        try:
            async for response in execute(stream.requests()):
                if stream.has_ended:
                    return
                stream.heard_at = time.monotonic()
                self._receive(lane, stream, response)
        finally:
            alive.cancel()
            stream.end()

    async def _send_alive(self, stream: ExecutorStream, epoch: int) -> None:
        while True:
            await asyncio.sleep(self._config.heartbeat_s)
            message = executor_pb2.ExecuteRequest(alive=types_pb2.Alive(epoch=epoch))
            stream.outgoing.put_nowait(message)

    def _receive(
        self, lane: Lane, stream: ExecutorStream, response: executor_pb2.ExecuteResponse
    ) -> None:
        assert self._post is not None
        now_ms = time.time_ns() // 1_000_000
        match response.WhichOneof("message"):
            case "step_result":
                self.num_result_bytes += response.ByteSize()
                result = wire.step_result_from_proto(response.step_result)
                self._post(ModelOutputReceived(lane.executor_id, result, now_ms))
            case "hello_ack":
                assert self._core is not None
                if stream.epoch != self._core.leader[0]:
                    raise StreamEnded("our epoch was raised meanwhile")
                OUR_VERSIONS.confirm(response.hello_ack.protocol_version)
                self._streams[lane.executor_id] = stream
                self._post(_connected(stream, response.hello_ack, now_ms))
            case "refused":
                assert self._on_refused is not None
                self._on_refused(response.refused.leader_seen.epoch)
                raise StreamEnded(f"refused: {response.refused.reason}")
            case "step_failed":
                failed = response.step_failed
                generation = wire.generation_from_proto(failed.generation)
                log.error("executor %s: step %d failed", lane.executor_id, failed.step_id)
                cause = f"step {failed.step_id} failed: {failed.error}"
                self._post(GenerationEnded(lane.executor_id, generation, cause, now_ms))
                raise StreamEnded(cause)
            case "goodbye":
                raise StreamEnded(f"goodbye: {response.goodbye.reason}")
            case _:
                pass


def _connected(
    stream: ExecutorStream, ack: executor_pb2.ExecutorHelloAck, now_ms: int
) -> ExecutorConnected:
    return ExecutorConnected(
        stream.executor_id,
        ack.incarnation_id,
        wire.generation_from_proto(ack.generation) if ack.HasField("generation") else None,
        wire.step_key_from_proto(ack.last_step) if ack.HasField("last_step") else None,
        ack.first_kept_step_id,
        wire.capacity_from_proto(ack.capacity),
        now_ms,
        stream.number,
    )


def _one_line(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error)
