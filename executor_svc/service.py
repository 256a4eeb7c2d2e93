"""ExecutorService: moves messages between a scheduler's stream, the ledger and the worker.

Decides nothing: whom to obey and what to run is the ledger's. Invariant: everything here but
`_settle` runs on one event loop, and whoever uses the ledger holds the lock until he has acted on
what it said. So an old stream has ended, and can send nothing more, before a new one is answered,
and each stream gets a result once: kept ones at Open, later ones as they end.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc

from executor_svc.step_ledger import LedgerRefused, ProtocolError, StepLedger
from executor_svc.step_worker import AcceptedStep, StepWorker
from segue import wire
from segue.types import Capacity, ModelRunnerOutput, SchedulerOutput
from segue.v1 import executor_pb2, executor_pb2_grpc, types_pb2
from segue.wire import OUR_VERSIONS, ProtocolMismatch, ProtocolVersions

log = logging.getLogger("segue.executor")
FLUSH_TIMEOUT_S = 1.0  # of an ended stream whose peer does not read

Context = grpc.aio.ServicerContext[Any, Any]


class HelloError(Exception):
    """This scheduler is not ours, whatever its epoch."""


@dataclass(slots=True, frozen=True)
class ExecutorIdentity:
    """What a HelloAck says that does not change. `deployment` empty: any."""

    executor_id: str
    incarnation_id: str
    capacity: Capacity
    model_digest: str = ""
    deployment: str = ""


class ExecuteStream:
    """What waits to be sent on one stream, and how it ended. Equal only to itself."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[tuple[grpc.StatusCode, str]] = self.loop.create_future()
        self._outbox: asyncio.Queue[executor_pb2.ExecuteResponse | None] = asyncio.Queue()

    @property
    def is_idle(self) -> bool:
        return self._outbox.empty()

    def send(self, **message: Any) -> None:
        """One field of ExecuteResponse. After the end nothing is sent."""
        if not self.ended.done():
            self._outbox.put_nowait(executor_pb2.ExecuteResponse(**message))

    def end(self, code: grpc.StatusCode, details: str = "", *, is_fenced: bool = False) -> None:
        """What was sent before still goes out, unless another stream has taken over."""
        if self.ended.done():
            return
        self.ended.set_result((code, details))
        if is_fenced:
            while not self._outbox.empty():
                self._outbox.get_nowait()
        self._outbox.put_nowait(None)

    async def write_to(self, context: Context) -> None:
        while (message := await self._outbox.get()) is not None:
            await context.write(message)


class ExecutorService(executor_pb2_grpc.ExecutorServiceServicer):
    """Serves one scheduler at a time: the one with the highest epoch."""

    def __init__(self, worker: StepWorker, identity: ExecutorIdentity) -> None:
        self.ledger = StepLedger()
        self.num_failed_steps = 0
        self.num_late_results = 0
        self.num_duplicate_steps = 0
        self._worker = worker
        self._identity = identity
        self._lock = threading.Lock()
        self._stream: ExecuteStream | None = None
        self._accepted_ns: dict[int, int] = {}
        self._running_since = 0.0
        self._is_stopping = False

    def add_to(self, server: grpc.aio.Server) -> None:
        executor_pb2_grpc.add_ExecutorServiceServicer_to_server(self, server)

    async def Execute(
        self, request_iterator: AsyncIterator[executor_pb2.ExecuteRequest], context: Context
    ) -> None:
        stream = ExecuteStream()
        reader = asyncio.create_task(self._read(stream, request_iterator))
        # Whatever ends the reader ends the stream; it is never cancelled in the middle of a read.
        reader.add_done_callback(lambda _: stream.end(grpc.StatusCode.INTERNAL, "reader ended"))
        writer = asyncio.create_task(stream.write_to(context))
        try:
            code, details = await asyncio.shield(stream.ended)
            await asyncio.wait({writer}, timeout=FLUSH_TIMEOUT_S)
        finally:
            stream.end(grpc.StatusCode.CANCELLED)
            if self._stream is stream:
                self._stream = None
            writer.cancel()
        if code is not grpc.StatusCode.OK:
            log.info("stream ended: %s %s", code.name, details)
            await context.abort(code, details)

    @property
    def is_led(self) -> bool:
        """A scheduler is connected, and may send steps."""
        return self._stream is not None and self.ledger.is_open_on(self._stream)

    @property
    def is_idle(self) -> bool:
        """No step runs, and all that was computed has been handed to gRPC."""
        is_told = self._stream is None or self._stream.is_idle
        return self.ledger.running_step is None and is_told

    def is_hung(self, hang_s: float) -> bool:
        """One step has been running for longer: only a new process helps."""
        is_running = self.ledger.running_step is not None
        return is_running and time.monotonic() - self._running_since > hang_s

    async def send_alive(self, heartbeat_s: float) -> None:
        """Runs beside everything else, so a long step does not look like a loss."""
        while True:
            stream = self._stream
            if stream is not None and stream.is_idle:
                stream.send(alive=self._alive())
            await asyncio.sleep(heartbeat_s)

    def stop(self, reason: str) -> None:
        """Say goodbye; a new stream is refused from now on."""
        self._is_stopping = True
        if self._stream is not None:
            self._stream.send(goodbye=types_pb2.Goodbye(reason=reason))
            self._stream.end(grpc.StatusCode.OK)

    async def _read(
        self, stream: ExecuteStream, requests: AsyncIterator[executor_pb2.ExecuteRequest]
    ) -> None:
        try:
            async for request in requests:
                if stream.ended.done():
                    return
                self._handle(stream, request)
            stream.end(grpc.StatusCode.OK)
        except HelloError as error:
            stream.end(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except ProtocolError as error:
            stream.end(grpc.StatusCode.ABORTED, str(error))
        except (ValueError, IndexError) as error:
            stream.end(grpc.StatusCode.INVALID_ARGUMENT, f"unreadable message: {error}")
        except grpc.aio.BaseError:  # the RPC ended, by us or by the peer, while we waited
            stream.end(grpc.StatusCode.CANCELLED)

    def _handle(self, stream: ExecuteStream, request: executor_pb2.ExecuteRequest) -> None:
        match request.WhichOneof("message"):
            case "hello":
                self._hello(stream, request.hello)
            case "open":
                self._open(stream, request.open)
            case "step":
                self._accept(stream, wire.step_from_proto(request.step))
            case "alive":
                pass
            case "goodbye":
                stream.end(grpc.StatusCode.OK)
            case _:
                log.warning("a message that this version does not know was ignored")

    def _hello(self, stream: ExecuteStream, hello: executor_pb2.ExecutorHello) -> None:
        protocol_version = self._check_is_ours(hello)
        with self._lock:
            answer = self.ledger.hello(stream, hello.leader.epoch, hello.leader.leader_id)
            if isinstance(answer, LedgerRefused):
                self._refuse(stream, answer)
                return
            if self._stream is not None and self._stream is not stream:
                self._stream.end(
                    grpc.StatusCode.ABORTED,
                    f"epoch {hello.leader.epoch} of {hello.leader.leader_id} has taken over",
                    is_fenced=True,
                )
            self._stream = stream
        identity = self._identity
        stream.send(
            hello_ack=executor_pb2.ExecutorHelloAck(
                executor_id=identity.executor_id,
                incarnation_id=identity.incarnation_id,
                generation=wire.generation_to_proto(answer.generation),
                last_step=wire.step_key_to_proto(answer.last_step),
                first_kept_step_id=answer.first_kept_step_id,
                capacity=wire.capacity_to_proto(identity.capacity),
                model_digest=identity.model_digest,
                protocol_version=protocol_version,
            )
        )

    def _refuse(self, stream: ExecuteStream, answer: LedgerRefused) -> None:
        seen = types_pb2.Leader(epoch=answer.epoch_seen, leader_id=answer.leader_id_seen)
        reason = f"epoch {answer.epoch_seen} of {answer.leader_id_seen} was seen"
        stream.send(refused=executor_pb2.Refused(leader_seen=seen, reason=reason))
        stream.end(grpc.StatusCode.FAILED_PRECONDITION, reason)

    def _check_is_ours(self, hello: executor_pb2.ExecutorHello) -> int:
        """The version to speak on this stream."""
        identity = self._identity
        if self._is_stopping:
            raise HelloError("this executor is stopping")
        peer = ProtocolVersions.of_hello(hello.protocol_version, hello.newest_protocol_version)
        try:
            agreed = OUR_VERSIONS.agree(peer)
        except ProtocolMismatch as error:
            raise HelloError(str(error)) from error
        if hello.executor_id not in ("", identity.executor_id):  # before anybody is taken over from
            raise HelloError(f"this is {identity.executor_id}, not {hello.executor_id}")
        if identity.deployment and hello.deployment_id != identity.deployment:
            raise HelloError(f"deployment {hello.deployment_id!r}, ours is {identity.deployment!r}")
        if hello.model_digest and hello.model_digest != identity.model_digest:
            raise HelloError(f"model {hello.model_digest}, ours is {identity.model_digest}")
        return agreed

    def _open(self, stream: ExecuteStream, message: executor_pb2.Open) -> None:
        generation = wire.generation_from_proto(message.generation)
        with self._lock:
            is_new = generation != self.ledger.generation
            kept = self.ledger.open(
                stream,
                generation,
                next_step_id=message.next_step_id,
                results_after_step_id=message.results_after_step_id,
                depth=message.depth,
            )
            if is_new:
                self._accepted_ns.clear()
        log.info("open: %s, %d kept results", generation, len(kept))
        for result in kept:
            stream.send(step_result=wire.step_result_to_proto(result))
        self._send_failure(stream)

    def _accept(self, stream: ExecuteStream, plan: SchedulerOutput) -> None:
        with self._lock:
            if not self.ledger.accept(stream, plan):
                self.num_duplicate_steps += 1
                return
            self._accepted_ns[plan.step_id] = time.monotonic_ns()
            step = self._next_step()
        if step is not None:
            self._worker.start(step, self._settle)

    def _next_step(self) -> AcceptedStep | None:
        """What is to run now, if none runs. With the lock."""
        plan = self.ledger.next_step()
        if plan is None:
            return None
        self._running_since = time.monotonic()
        return AcceptedStep(plan, self._accepted_ns.pop(plan.step_id), self.ledger.take_reset())

    def _settle(
        self, plan: SchedulerOutput, outcome: ModelRunnerOutput | Exception
    ) -> AcceptedStep | None:
        """On the worker's thread: take the step's end, and say what comes next."""
        with self._lock:
            if isinstance(outcome, Exception):
                self.num_failed_steps += 1
                error = f"{type(outcome).__name__}: {outcome}"
                counts = self.ledger.fail(plan.step_id, error)
            else:
                counts = self.ledger.finish(outcome)
                self.num_late_results += not counts
            stream = self._stream
            if counts and stream is not None and self.ledger.is_open_on(stream):
                stream.loop.call_soon_threadsafe(self._tell, stream, outcome)
            return self._next_step()

    def _tell(self, stream: ExecuteStream, outcome: ModelRunnerOutput | Exception) -> None:
        """To the stream that was open when the step ended; a later one was told at its Open."""
        if isinstance(outcome, Exception):
            self._send_failure(stream)
        else:
            stream.send(step_result=wire.step_result_to_proto(outcome))

    def _send_failure(self, stream: ExecuteStream) -> None:
        """If its generation has not been replaced since."""
        with self._lock:
            failure, generation = self.ledger.failure, self.ledger.generation
        if failure is None:
            return
        stream.send(
            step_failed=executor_pb2.StepFailed(
                step_id=failure.step_id,
                generation=wire.generation_to_proto(generation),
                error=failure.error,
            )
        )

    def _alive(self) -> types_pb2.Alive:
        with self._lock:
            alive = types_pb2.Alive(epoch=self.ledger.epoch_seen)
            running = self.ledger.running_step
        if running is not None:
            alive.running_step_id = running.step_id
            alive.running_ms = int((time.monotonic() - self._running_since) * 1000)
        return alive
