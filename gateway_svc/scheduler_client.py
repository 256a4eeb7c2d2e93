"""The gateway's end of Session: finds the leader, says what it wants, takes what comes.

Knows messages and streams; what is wanted and what was received is the ledger's. Invariant (H17):
one session at a time; the old one and its reader have ended before the hello of the next is built
from the ledger, so no row comes in behind a hello that does not count it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import Any

import grpc

from gateway_svc.api_error import ApiError, internal, invalid, queue_full, too_long, unavailable
from gateway_svc.availability import Availability
from gateway_svc.call import request_id_of
from gateway_svc.choice import Choice, RowGap, RowMismatch
from gateway_svc.ledger import Attaching, Ledger
from gateway_svc.live_call import LiveCall
from gateway_svc.metrics import GatewayMetrics
from gateway_svc.scheduler_addresses import SchedulerAddresses
from segue import wire
from segue.grpc_server import LEADER_METADATA, open_channel
from segue.grpc_tls import TlsFiles
from segue.lane_status import takes_requests
from segue.types import Attachment
from segue.v1 import scheduler_pb2, scheduler_pb2_grpc, types_pb2
from segue.wire import OUR_VERSIONS

log = logging.getLogger("segue.gateway")

MIN_BACKOFF_S, MAX_BACKOFF_S = 0.1, 0.3
GOODBYE_TIMEOUT_S = 1.0

Request = scheduler_pb2.SessionRequest
SessionCall = grpc.aio.StreamStreamCall[Request, scheduler_pb2.SessionResponse]


class SessionEnded(Exception):
    """This session is over; the next one may go elsewhere."""


@dataclass(slots=True)
class SeenLeader:
    """The highest leader that has answered; a lower one, or its double, is refused (rule 2)."""

    epoch: int = 0
    leader_id: str = ""

    def check(self, leader: types_pb2.Leader) -> None:
        is_double = leader.epoch == self.epoch and leader.leader_id != self.leader_id
        if leader.epoch < self.epoch or (is_double and self.leader_id):
            raise SessionEnded(f"epoch {leader.epoch} is not above {self.epoch}, which was seen")
        self.epoch, self.leader_id = leader.epoch, leader.leader_id


@dataclass(slots=True, frozen=True)
class SessionSettings:
    gateway_id: str
    schedulers: tuple[str, ...]
    lease_ttl_s: float
    heartbeat_s: float
    tls: TlsFiles | None = None


class SchedulerClient:
    """What the front calls. Nothing here fails while no leader is found: it waits in the ledger."""

    def __init__(
        self,
        settings: SessionSettings,
        ledger: Ledger,
        availability: Availability,
        metrics: GatewayMetrics,
    ) -> None:
        self.settings = settings
        self.ledger = ledger
        self.availability = availability
        self.metrics = metrics
        self.seen = SeenLeader()
        self.max_model_len = 0  # of the executors; 0: not known
        self._addresses = SchedulerAddresses(settings.schedulers)
        self._session: _Session | None = None
        self._refusal = ""  # what a scheduler said that leads and does not want us

    def submit(self, live: LiveCall) -> None:
        self.ledger.add(live)
        if self._session is not None:
            self._session.submit(live)

    def release(self, live: LiveCall, reason: str) -> None:
        """Nobody reads the answer any more: what of it is under way is aborted."""
        self._abort(self.ledger.release(live, reason))

    async def attach(self, call_id: str) -> LiveCall | None:
        """The call, from whatever gateway has it; None if the scheduler does not know it."""
        done: asyncio.Future[LiveCall | None] = asyncio.get_running_loop().create_future()

        def on_done(live: LiveCall | None) -> None:
            if not done.done():
                done.set_result(live)

        attaching = Attaching(call_id, on_done)
        self.ledger.attach(attaching)
        if self._session is not None:
            self._session.attach(attaching)
        try:
            return await done
        finally:
            self._abort(self.ledger.give_up_attaching(attaching))

    async def run(self) -> None:
        """One session after the other, until cancelled."""
        while True:
            address = await self._addresses.next()
            try:
                await self._run_session(address)
            except grpc.aio.AioRpcError as error:
                self._note_loss(
                    address,
                    f"{error.code().name} {error.details()}",
                    is_refused=error.code() is grpc.StatusCode.FAILED_PRECONDITION,
                )
                self._addresses.suggest(_leader_address(error))
            except TimeoutError:
                self._note_loss(address, "silence")
            except (SessionEnded, RowGap, ValueError) as error:
                self._note_loss(address, str(error))
            except RowMismatch as error:
                self.metrics.row_mismatches.add()
                log.error("%s: %s", address, error)
                self._note_loss(address, "contradicting rows")
            await asyncio.sleep(random.uniform(MIN_BACKOFF_S, MAX_BACKOFF_S))

    async def say_goodbye(self) -> None:
        """The stream ends on purpose."""
        if self._session is not None:
            with contextlib.suppress(TimeoutError, grpc.aio.AioRpcError):
                async with asyncio.timeout(GOODBYE_TIMEOUT_S):
                    await self._session.say_goodbye()

    def suggest_leader(self, address: str) -> None:
        self._addresses.suggest(address)

    def _abort(self, choices: Iterable[Choice]) -> None:
        for choice in choices:
            if self._session is not None:
                self._session.abort(choice)

    async def _run_session(self, address: str) -> None:
        async with open_channel(address, self.settings.tls) as channel:
            self._session = _Session(self, address, channel)
            try:
                await self._session.run()
            finally:
                self._session = None

    def _note_loss(self, address: str, reason: str, *, is_refused: bool = False) -> None:
        """Loud once: tries that find no leader are expected until one leads. Refused is refused."""
        is_news = is_refused and reason != self._refusal
        self._refusal = reason if is_refused else self._refusal
        level = logging.WARNING if is_news or self.availability.is_connected else logging.DEBUG
        log.log(level, "session with %s ended: %s", address, reason)
        self.availability.set_connected(False, time.monotonic())


class _Session:
    """One stream. The hello is built here, so the ledger and what follows fit together."""

    def __init__(self, client: SchedulerClient, address: str, channel: grpc.aio.Channel) -> None:
        self._client = client
        self._address = address
        self._ledger = client.ledger
        self._stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        self._outgoing: asyncio.Queue[Request] = asyncio.Queue()
        self._submitted: set[str] = set()  # calls, in this session
        self._is_acknowledged = asyncio.Event()
        self._handlers: dict[str, Callable[[Any], None]] = {
            "hello_ack": self._on_hello_ack,
            "not_leader": self._on_not_leader,
            "accepted": self._on_accepted,
            "unknown": self._on_unknown,
            "detached": self._on_detached,
            "rejected": self._on_rejected,
            "outputs": self._on_outputs,
            "alive": self._on_alive,
            "goodbye": self._on_goodbye,
        }
        hello = scheduler_pb2.SessionHello(
            protocol_version=OUR_VERSIONS.oldest,
            newest_protocol_version=OUR_VERSIONS.newest,
            gateway_id=client.settings.gateway_id,
            session_id=secrets.token_hex(8),
            epoch_seen=client.seen.epoch,
            leader_id_seen=client.seen.leader_id,
            attachments=[wire.attachment_to_proto(a) for a in self._ledger.attachments()],
        )
        self._send(Request(hello=hello))
        for choice in self._ledger.to_abort():
            self.abort(choice)
        for attaching in self._ledger.to_attach():
            self.attach(attaching)

    async def run(self) -> None:
        """Until the stream ends or is to be ended; always by an exception."""
        call: SessionCall = self._stub.Session()
        tasks = [
            asyncio.create_task(self._write(call)),
            asyncio.create_task(self._beat()),
        ]
        try:
            while True:
                async with asyncio.timeout(self._client.settings.lease_ttl_s):
                    message = await call.read()
                if not isinstance(message, scheduler_pb2.SessionResponse):
                    raise SessionEnded("the stream was closed")
                self._handle(message)
        finally:
            call.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def submit(self, live: LiveCall) -> None:
        """The call, whole; rows that the client has go with it, as output (H22)."""
        self._submitted.add(live.call_id)
        wanted = [c for c in live.choices if not c.is_settled and not c.abort_reason]
        # That it comes with rows, or was accepted before, says that it must not be refused now.
        again = [c for c in wanted if c.is_accepted or c.token_ids]
        message = scheduler_pb2.Submit(
            submissions=[wire.submission_to_proto(c.submission) for c in wanted],
            delivered=[wire.attachment_to_proto(c.attachment()) for c in again],
        )
        self._send(Request(submit=message))

    def abort(self, choice: Choice) -> None:
        message = scheduler_pb2.Abort(
            request_id=choice.request_id,
            reason=choice.abort_reason,
            num_delivered_tokens=len(choice.token_ids),
        )
        self._send(Request(abort=message))

    def attach(self, attaching: Attaching) -> None:
        """Asks for the choices that are missing, with all their rows from index 0."""
        ids = [request_id_of(attaching.call_id, index) for index in attaching.missing]
        items = [wire.attachment_to_proto(Attachment(request_id)) for request_id in ids]
        self._send(Request(attach=scheduler_pb2.Attach(attachments=items)))

    async def say_goodbye(self) -> None:
        self._send(Request(goodbye=types_pb2.Goodbye(reason="the gateway is stopping")))
        await self._outgoing.join()

    def _send(self, request: Request) -> None:
        self._outgoing.put_nowait(request)

    async def _write(self, call: SessionCall) -> None:
        """A failure shows in the reader, which ends the session."""
        async for request in _drain(self._outgoing):
            try:
                await call.write(request)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
                log.debug("session with %s: cannot write: %s", self._address, error)
                return

    async def _beat(self) -> None:
        await self._is_acknowledged.wait()
        while True:
            self._send(Request(alive=types_pb2.Alive(epoch=self._client.seen.epoch)))
            await self._ask_status()
            await asyncio.sleep(self._client.settings.heartbeat_s)

    async def _ask_status(self) -> None:
        """Whether there is an executor, and whether steps end: rows alone do not show a prefill."""
        timeout_s = self._client.settings.lease_ttl_s
        try:
            request = scheduler_pb2.GetStatusRequest()
            status = await self._stub.GetStatus(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            log.debug("status of %s: %s", self._address, error.code().name)
            return
        self._client.availability.set_status(
            has_executor=any(map(takes_requests, status.lanes)),
            is_store_down=status.is_store_down,
            num_steps_finished=status.num_steps_finished,
            now=time.monotonic(),
        )

    def _handle(self, message: scheduler_pb2.SessionResponse) -> None:
        kind = message.WhichOneof("message")
        if kind is not None:  # None: something of a newer protocol
            self._handlers[kind](getattr(message, kind))

    def _on_hello_ack(self, ack: scheduler_pb2.SessionHelloAck) -> None:
        OUR_VERSIONS.confirm(ack.protocol_version)
        self._client.seen.check(ack.leader)
        self._is_acknowledged.set()
        self._client.max_model_len = ack.max_model_len
        self._client.availability.set_connected(True, time.monotonic())
        self._client.metrics.sessions_opened.add()
        log.info("session with %s, epoch %d", self._address, ack.leader.epoch)

    def _on_not_leader(self, message: scheduler_pb2.NotLeader) -> None:
        self._client.suggest_leader(message.leader_address)
        raise SessionEnded("not the leader")

    def _on_alive(self, message: types_pb2.Alive) -> None:
        self._check_epoch(message.epoch)

    def _on_goodbye(self, message: types_pb2.Goodbye) -> None:
        raise SessionEnded(message.reason)

    def _check_epoch(self, epoch: int) -> None:
        if epoch < self._client.seen.epoch:
            raise SessionEnded(f"epoch {epoch} is below {self._client.seen.epoch}")

    def _on_outputs(self, message: scheduler_pb2.Outputs) -> None:
        self._check_epoch(message.epoch)
        self._client.availability.note_progress(time.monotonic())
        for choice in self._ledger.receive(wire.outputs_from_proto(message)):
            self.abort(choice)

    def _on_accepted(self, message: scheduler_pb2.Accepted) -> None:
        for submission in message.submissions:
            attaching = self._ledger.attached(wire.submission_from_proto(submission))
            if attaching is not None:
                self.attach(attaching)
        for request_id in message.request_ids:
            self._ledger.accepted(request_id)

    def _on_unknown(self, message: scheduler_pb2.Unknown) -> None:
        for request_id in message.request_ids:
            live = self._ledger.unknown(request_id)
            if live is not None and live.call_id not in self._submitted:
                self.submit(live)

    def _on_detached(self, message: scheduler_pb2.Detached) -> None:
        for request_id in message.request_ids:
            self._ledger.detached(request_id, _detached_error())

    def _on_rejected(self, message: scheduler_pb2.Rejected) -> None:
        self._ledger.rejected(message.request_id, _refusal(message))


async def _drain(queue: asyncio.Queue[Request]) -> AsyncIterator[Request]:
    while True:
        request = await queue.get()
        yield request
        queue.task_done()


def _detached_error() -> ApiError:
    return ApiError(
        409, "another connection took this stream over", type="conflict_error", code="detached"
    )


def _refusal(rejected: scheduler_pb2.Rejected) -> ApiError:
    match rejected.code:
        case scheduler_pb2.REJECT_CODE_QUEUE_FULL:
            return queue_full(rejected.message, max(1, math.ceil(rejected.retry_after_ms / 1000)))
        case scheduler_pb2.REJECT_CODE_TOO_LONG:
            return too_long(rejected.message, "prompt")
        case scheduler_pb2.REJECT_CODE_INVALID:
            return invalid(rejected.message)
        case scheduler_pb2.REJECT_CODE_UNSUPPORTED:
            return invalid(rejected.message, code="unsupported_parameter")
        case _:
            if rejected.retry_after_ms:
                return unavailable(rejected.message, math.ceil(rejected.retry_after_ms / 1000))
            return internal(rejected.message)


def _leader_address(error: grpc.aio.AioRpcError) -> str:
    for key, value in error.trailing_metadata() or ():
        if key == LEADER_METADATA:
            return value if isinstance(value, str) else value.decode()
    return ""
