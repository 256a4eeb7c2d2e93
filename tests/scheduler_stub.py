"""A scheduler without scheduling: speaks Session as the real one does, and misbehaves on request.

Knows the protocol, no core and no Redis. Output is scripted: `reply` gives the tokens of an answer.
Rows come by `step`, or by themselves while `is_running`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc

from segue import wire
from segue.grpc_server import LEADER_METADATA
from segue.types import (
    Attachment,
    Finish,
    FinishReason,
    OutputColumns,
    RequestOutput,
    Submission,
    TokenLogprobs,
    Usage,
)
from segue.v1 import scheduler_pb2, scheduler_pb2_grpc, types_pb2

Response = scheduler_pb2.SessionResponse


@dataclass(slots=True, frozen=True)
class Reply:
    """What a request will answer; it ends with `reason` after the last token."""

    token_ids: bytes | list[int]
    reason: FinishReason = FinishReason.STOP
    stop_reason: int | None = None


@dataclass(slots=True)
class StubRequest:
    submission: Submission
    reply: Reply
    owner: str
    num_output: int = 0
    abort_reason: str = ""

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(self.reply.token_ids)[: self.num_output]

    @property
    def finish(self) -> Finish | None:
        usage = Usage(len(self.submission.prompt_token_ids), self.num_output)
        if self.abort_reason:
            return Finish(FinishReason.ABORT, usage, message=self.abort_reason)
        if self.num_output < len(self.reply.token_ids):
            return None
        return Finish(self.reply.reason, usage, self.reply.stop_reason)


@dataclass(slots=True, eq=False)
class StubSession:
    gateway_id: str
    outgoing: asyncio.Queue[Response | None] = field(default_factory=asyncio.Queue)
    cursors: dict[str, int] = field(default_factory=dict)


def _parrot(submission: Submission) -> Reply:
    """The prompt again, cut at max_tokens."""
    limit = submission.sampling_params.max_tokens
    token_ids = list(submission.prompt_token_ids)[:limit]
    reason = FinishReason.LENGTH if len(token_ids) == limit else FinishReason.STOP
    return Reply(token_ids, reason)


class SchedulerStub(scheduler_pb2_grpc.SchedulerServiceServicer):
    def __init__(self, reply: Callable[[Submission], Reply] = _parrot) -> None:
        self.reply = reply
        self.epoch = 1
        self.leader_id = "leader-1"
        self.leads = True
        self.leader_address = ""
        self.is_silent = False  # takes messages and says nothing
        self.is_running = True
        self.has_executor = True
        self.is_draining = False
        self.is_store_down = False
        self.num_steps = 0
        self.reject: scheduler_pb2.Rejected | None = None
        self.requests: dict[str, StubRequest] = {}
        self.hellos: list[scheduler_pb2.SessionHello] = []
        self.submits: list[scheduler_pb2.Submit] = []
        self.aborts: list[scheduler_pb2.Abort] = []
        self.goodbyes: list[str] = []
        self.sessions: dict[str, StubSession] = {}
        self.changed = asyncio.Condition()

    # What a test does to it.

    async def run(self) -> None:
        while True:
            if self.is_running and self.has_executor and not self.is_draining:
                self.step()
            await asyncio.sleep(0.001)

    def step(self, num_tokens: int = 1) -> None:
        """Each unfinished request gets so many tokens."""
        self.num_steps += 1
        for request in self.requests.values():
            if request.finish is None:
                wanted = request.num_output + num_tokens
                request.num_output = min(len(request.reply.token_ids), wanted)
        self.emit()

    def emit(self) -> None:
        for session in self.sessions.values():
            outputs = [self._new_rows(session, request_id) for request_id in session.cursors]
            found = [output for output in outputs if output is not None]
            for output in found:
                if output.finish is not None:
                    del session.cursors[output.request_id]
                else:
                    end = output.first_index + len(output.new_token_ids)
                    session.cursors[output.request_id] = end
            if found:
                self.send_outputs(session, found)

    def send_outputs(
        self, session: StubSession, outputs: list[RequestOutput], epoch: int | None = None
    ) -> None:
        epoch = self.epoch if epoch is None else epoch
        message = wire.outputs_to_proto(epoch, self.num_steps, OutputColumns.of(outputs))
        session.outgoing.put_nowait(Response(outputs=message))

    def drop_sessions(self) -> None:
        """As a killed scheduler: the streams break."""
        for session in self.sessions.values():
            session.outgoing.put_nowait(None)
        self.sessions.clear()

    def lead_anew(self) -> None:
        self.epoch += 1
        self.leader_id = f"leader-{self.epoch}"
        self.drop_sessions()

    def wipe(self) -> None:
        """As Redis that lost everything, and the leader with it."""
        self.requests.clear()
        self.lead_anew()

    async def until(self, predicate: Callable[[], Any]) -> None:
        """Waits until the stub has seen something."""
        async with self.changed:
            await self.changed.wait_for(predicate)

    def session(self, gateway_id: str = "g0") -> StubSession:
        return self.sessions[gateway_id]

    # SchedulerService.

    async def Session(
        self,
        request_iterator: AsyncIterator[scheduler_pb2.SessionRequest],
        context: grpc.aio.ServicerContext,
    ) -> AsyncIterator[Response]:
        if not self.leads:
            context.set_trailing_metadata(((LEADER_METADATA, self.leader_address),))
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not the leader")
        hello = (await anext(request_iterator)).hello
        session = StubSession(hello.gateway_id)
        self.hellos.append(hello)
        await self._tell()
        leader = types_pb2.Leader(epoch=self.epoch, leader_id=self.leader_id)
        if not self.is_silent:
            self.sessions[hello.gateway_id] = session
            ack = scheduler_pb2.SessionHelloAck(leader=leader)
            session.outgoing.put_nowait(Response(hello_ack=ack))
            for item in hello.attachments:
                self._attach(session, wire.attachment_from_proto(item), is_new=False)
        reader = asyncio.create_task(self._read(session, request_iterator))
        alive = asyncio.create_task(self._keep_alive(session))
        try:
            while (response := await session.outgoing.get()) is not None:
                yield response
            await context.abort(grpc.StatusCode.UNAVAILABLE, "dropped")
        finally:
            reader.cancel()
            alive.cancel()

    async def GetStatus(
        self, request: scheduler_pb2.GetStatusRequest, context: grpc.aio.ServicerContext
    ) -> scheduler_pb2.GetStatusResponse:
        status = "draining" if self.is_draining else "active"
        lane = scheduler_pb2.LaneStatus(is_connected=self.has_executor, status=status)
        return scheduler_pb2.GetStatusResponse(
            num_steps_finished=self.num_steps, lanes=[lane], is_store_down=self.is_store_down
        )

    async def _keep_alive(self, session: StubSession) -> None:
        while True:
            await asyncio.sleep(0.05)
            if not self.is_silent:
                alive = types_pb2.Alive(epoch=self.epoch)
                session.outgoing.put_nowait(Response(alive=alive))

    async def _read(
        self, session: StubSession, requests: AsyncIterator[scheduler_pb2.SessionRequest]
    ) -> None:
        async for request in requests:
            match request.WhichOneof("message"):
                case "submit":
                    self.submits.append(request.submit)
                    self._on_submit(session, request.submit)
                case "abort":
                    self.aborts.append(request.abort)
                    self._on_abort(session, request.abort)
                case "attach":
                    for item in request.attach.attachments:
                        self._attach(session, wire.attachment_from_proto(item), is_new=True)
                case "goodbye":
                    self.goodbyes.append(request.goodbye.reason)
                case _:
                    continue
            await self._tell()

    async def _tell(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    def _on_submit(self, session: StubSession, submit: scheduler_pb2.Submit) -> None:
        delivered = {d.request_id: wire.attachment_from_proto(d) for d in submit.delivered}
        if self.is_silent:
            return
        for message in submit.submissions:
            submission = wire.submission_from_proto(message)
            if self.reject is not None:
                rejected = scheduler_pb2.Rejected()
                rejected.CopyFrom(self.reject)
                rejected.request_id = submission.request_id
                session.outgoing.put_nowait(Response(rejected=rejected))
                continue
            request_id = submission.request_id
            if request_id not in self.requests:
                request = StubRequest(submission, self.reply(submission), session.gateway_id)
                self.requests[request_id] = request
            rows = delivered.get(request_id, Attachment(request_id))
            self._attach(session, rows, is_new=False)

    def _on_abort(self, session: StubSession, abort: scheduler_pb2.Abort) -> None:
        request = self.requests.get(abort.request_id)
        if request is not None and request.owner == session.gateway_id and request.finish is None:
            request.abort_reason = abort.reason
            self.emit()

    def _attach(self, session: StubSession, rows: Attachment, *, is_new: bool) -> None:
        request = self.requests.get(rows.request_id)
        if rows.is_finished:
            return
        if request is None:
            unknown = scheduler_pb2.Unknown(request_ids=[rows.request_id])
            session.outgoing.put_nowait(Response(unknown=unknown))
            return
        if request.owner != session.gateway_id and request.owner in self.sessions:
            detached = scheduler_pb2.Detached(request_ids=[rows.request_id])
            self.sessions[request.owner].outgoing.put_nowait(Response(detached=detached))
            self.sessions[request.owner].cursors.pop(rows.request_id, None)
        request.owner = session.gateway_id
        seen = rows.delivered_token_ids
        if seen != request.token_ids[: len(seen)]:  # what the client saw wins
            assert seen == tuple(request.reply.token_ids)[: len(seen)]
            request.num_output = len(seen)
        session.cursors[rows.request_id] = len(seen)
        accepted = scheduler_pb2.Accepted(request_ids=[rows.request_id], next_indices=[len(seen)])
        if is_new:
            accepted.submissions.append(wire.submission_to_proto(request.submission))
        session.outgoing.put_nowait(Response(accepted=accepted))
        self.emit()

    def _new_rows(self, session: StubSession, request_id: str) -> RequestOutput | None:
        request = self.requests.get(request_id)
        if request is None:
            return None
        start = session.cursors[request_id]
        token_ids = request.token_ids[start:]
        if not token_ids and request.finish is None:
            return None
        num_logprobs = request.submission.sampling_params.num_logprobs
        logprobs = () if num_logprobs is None else _logprobs(token_ids, num_logprobs)
        return RequestOutput(request_id, start, token_ids, logprobs, request.finish)


def _logprobs(token_ids: tuple[int, ...], num_top: int) -> tuple[TokenLogprobs, ...]:
    """-0.5 for the sampled token, which is the best; then its neighbours, each half as likely."""
    return tuple(
        TokenLogprobs(
            -0.5,
            tuple((token_id + i) % 256 for i in range(num_top)),
            tuple(-0.5 - i for i in range(num_top)),
        )
        for token_id in token_ids
    )
