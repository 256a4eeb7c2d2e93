"""A real gRPC server around a runner that the test holds, and a scheduler's end of Execute."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from executor_svc.service import ExecutorIdentity, ExecutorService
from executor_svc.step_worker import StepWorker
from segue import wire
from segue.grpc_server import (
    EXECUTOR_SERVICE,
    Health,
    bind,
    execute_stub,
    make_server,
    open_channel,
)
from segue.types import Capacity, Generation, ModelRunnerOutput, NewRequestData, SamplingParams
from segue.types import SchedulerOutput as Plan
from segue.v1 import executor_pb2, types_pb2

CAPACITY = Capacity(num_blocks=32, block_size=16, max_model_len=512, vocab_size=259)
FIRST = Generation(1, 1)
SECOND = Generation(2, 2)


def make_plan(
    step_id: int, generation: Generation = FIRST, epoch: int = 1, num_tokens: int = 3
) -> Plan:
    params = SamplingParams(seed=1, max_tokens=9)
    new = NewRequestData(f"r{step_id}", (7,) * num_tokens, num_tokens, 0, (1,), params)
    scheduled = {new.request_id: num_tokens}
    return Plan(step_id, epoch, generation, [new], num_scheduled_tokens=scheduled)


class FakeRunner:
    """Says what it ran. Steps wait while `gate` is closed; those in `failing` raise."""

    capacity = CAPACITY
    num_positions_computed = 0
    num_positions_recomputed = 0
    num_draft_tokens = 0
    num_accepted_draft_tokens = 0

    def __init__(self) -> None:
        self.ran: list[tuple[Generation, int]] = []
        self.num_prompt_tokens = 0
        self.num_resets = 0
        self.failing: set[int] = set()
        self.gate = threading.Event()
        self.gate.set()
        self.started = threading.Event()

    def reset(self) -> None:
        self.num_resets += 1

    def execute(self, plan: Plan) -> ModelRunnerOutput:
        self.ran.append((plan.generation, plan.step_id))
        self.started.set()
        assert self.gate.wait(8)
        if plan.step_id in self.failing:
            raise RuntimeError("out of memory")
        request_ids = list(plan.num_scheduled_tokens)
        self.num_prompt_tokens += sum(plan.num_scheduled_tokens.values())
        return ModelRunnerOutput(
            plan.step_id,
            plan.generation,
            request_ids,
            [0 for _ in request_ids],
            [[plan.step_id] for _ in request_ids],
        )


class SchedulerEnd:
    """One Execute stream, as a scheduler drives it."""

    def __init__(self, call: Any) -> None:
        self.call = call

    async def hello(self, epoch: int = 1, leader_id: str = "a", **fields: Any) -> Any:
        await self.send_hello(epoch, leader_id, **fields)
        return await self.call.read()

    async def send_hello(self, epoch: int = 1, leader_id: str = "a", **fields: Any) -> None:
        leader = types_pb2.Leader(epoch=epoch, leader_id=leader_id)
        fields = {
            "protocol_version": wire.PROTOCOL_VERSION,
            "deployment_id": "prod",
            **fields,
        }
        hello = executor_pb2.ExecutorHello(leader=leader, **fields)
        await self.call.write(executor_pb2.ExecuteRequest(hello=hello))

    async def open(
        self, generation: Generation = FIRST, next_step_id: int = 1, results_after_step_id: int = 0
    ) -> None:
        message = executor_pb2.Open(
            generation=wire.generation_to_proto(generation),
            next_step_id=next_step_id,
            results_after_step_id=results_after_step_id,
            depth=2,
        )
        await self.call.write(executor_pb2.ExecuteRequest(open=message))

    async def step(self, step_id: int, generation: Generation = FIRST) -> None:
        await self.send_plan(make_plan(step_id, generation))

    async def send_plan(self, plan: Plan) -> None:
        await self.call.write(wire.encode_step(plan))

    async def read(self) -> Any:
        """The next message that is no sign of life; EOF at the end."""
        while True:
            message = await self.call.read()
            if message is grpc.aio.EOF or message.WhichOneof("message") != "alive":
                return message

    async def read_result(self) -> ModelRunnerOutput:
        message = await self.read()
        assert message is not grpc.aio.EOF, await self.call.code()
        assert message.WhichOneof("message") == "step_result", message
        return wire.step_result_from_proto(message.step_result)

    async def end(self) -> tuple[grpc.StatusCode, str]:
        """Status of a stream that the executor has to close."""
        try:
            assert await self.read() is grpc.aio.EOF
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details() or ""
        return await self.call.code(), ""


class ExecutorEnd:
    def __init__(self, runner: FakeRunner, service: ExecutorService, address: str) -> None:
        self.runner = runner
        self.service = service
        self.address = address
        self._channels: list[grpc.aio.Channel] = []

    def connect(self) -> SchedulerEnd:
        """Each on a connection of its own, as of another process."""
        channel = open_channel(self.address)
        self._channels.append(channel)
        return SchedulerEnd(execute_stub(channel)())

    async def opened(self, epoch: int = 1, leader_id: str = "a") -> SchedulerEnd:
        stream = self.connect()
        await stream.hello(epoch, leader_id)
        await stream.open()
        return stream

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()


@asynccontextmanager
async def running_executor(heartbeat_s: float = 0.02) -> AsyncIterator[ExecutorEnd]:
    runner = FakeRunner()
    worker = StepWorker(runner)
    identity = ExecutorIdentity("e0", "0001-abc", CAPACITY, "digest", "prod")
    service = ExecutorService(worker, identity)
    server = make_server()
    service.add_to(server)
    health = Health(server, [EXECUTOR_SERVICE])
    port = bind(server, "127.0.0.1:0")
    await server.start()
    await health.set_ready(is_ready=True)
    alive = asyncio.create_task(service.send_alive(heartbeat_s))
    end = ExecutorEnd(runner, service, f"127.0.0.1:{port}")
    try:
        yield end
    finally:
        runner.gate.set()
        alive.cancel()
        await end.close()
        await server.stop(0.1)
        worker.close()
