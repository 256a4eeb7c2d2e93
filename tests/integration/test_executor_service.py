"""The executor's side of Execute over real gRPC: what a scheduler sees, and what is run for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from segue import wire
from segue.grpc_server import EXECUTOR_SERVICE, bind, make_server, open_channel
from segue.types import Generation
from segue.v1 import executor_pb2
from tests.integration.executor_stream import (
    CAPACITY,
    FIRST,
    SECOND,
    ExecutorEnd,
    make_plan,
    running_executor,
)


@pytest_asyncio.fixture
async def executor() -> AsyncIterator[ExecutorEnd]:
    async with running_executor() as end:
        yield end


async def test_handshake_then_results_in_order(executor: ExecutorEnd) -> None:
    stream = executor.connect()
    ack = (await stream.hello()).hello_ack
    assert (ack.executor_id, ack.incarnation_id, ack.model_digest) == ("e0", "0001-abc", "digest")
    assert wire.capacity_from_proto(ack.capacity) == CAPACITY
    assert not ack.HasField("generation")
    assert not ack.HasField("last_step")
    await stream.open()
    await stream.step(1)
    await stream.step(2)
    results = [await stream.read_result(), await stream.read_result()]
    assert [result.step_id for result in results] == [1, 2]
    assert results[0].sampled_token_ids == [[1]]
    assert executor.runner.num_resets == 1


async def test_kept_results_come_on_a_new_stream_without_running_again(
    executor: ExecutorEnd,
) -> None:
    old = await executor.opened()
    await old.step(1)
    await old.step(2)
    first, second = await old.read_result(), await old.read_result()
    new = executor.connect()
    ack = (await new.hello(epoch=2, leader_id="b")).hello_ack
    assert wire.generation_from_proto(ack.generation) == FIRST
    assert (ack.last_step.step_id, ack.last_step.epoch, ack.first_kept_step_id) == (2, 1, 1)
    await new.open()
    assert [await new.read_result(), await new.read_result()] == [first, second]
    await new.step(3)
    assert (await new.read_result()).step_id == 3
    assert executor.runner.ran == [(FIRST, 1), (FIRST, 2), (FIRST, 3)]
    assert executor.runner.num_resets == 1


async def test_result_that_ends_between_hello_and_open_is_sent_once(executor: ExecutorEnd) -> None:
    executor.runner.gate.clear()
    old = await executor.opened()
    await old.step(1)
    await asyncio.to_thread(executor.runner.started.wait)
    new = executor.connect()
    await new.hello(epoch=2, leader_id="b")
    executor.runner.gate.set()
    while executor.service.ledger.running_step is not None:
        await asyncio.sleep(0)
    await new.open()
    await new.step(2)
    assert [(await new.read_result()).step_id, (await new.read_result()).step_id] == [1, 2]


async def test_higher_epoch_ends_the_old_stream(executor: ExecutorEnd) -> None:
    """Rule 2: what the old leader still sends must not reach the ledger (H17)."""
    old = await executor.opened()
    new = executor.connect()
    assert (await new.hello(epoch=2, leader_id="b")).WhichOneof("message") == "hello_ack"
    code, details = await old.end()
    assert code is grpc.StatusCode.ABORTED
    assert "epoch 2 of b" in details


async def test_old_stream_gets_nothing_after_the_new_one_was_answered(
    executor: ExecutorEnd,
) -> None:
    executor.runner.gate.clear()
    old = await executor.opened()
    await old.step(1)
    await asyncio.to_thread(executor.runner.started.wait)
    new = executor.connect()
    await new.hello(epoch=2, leader_id="b")
    await new.open()
    executor.runner.gate.set()
    assert (await new.read_result()).step_id == 1
    assert (await old.end())[0] is grpc.StatusCode.ABORTED


@pytest.mark.parametrize("epoch, leader_id", [(4, "a"), (5, "impostor")])
async def test_lower_epoch_or_other_leader_is_refused(
    executor: ExecutorEnd, epoch: int, leader_id: str
) -> None:
    leader = await executor.opened(epoch=5, leader_id="a")
    late = executor.connect()
    refused = (await late.hello(epoch, leader_id)).refused
    assert (refused.leader_seen.epoch, refused.leader_seen.leader_id) == (5, "a")
    assert (await late.end())[0] is grpc.StatusCode.FAILED_PRECONDITION
    await leader.step(1)
    assert (await leader.read_result()).step_id == 1


@pytest.mark.parametrize(
    "fields, reason",
    [
        ({"protocol_version": 99}, "protocol version"),
        ({"deployment_id": "staging"}, "deployment"),
        ({"model_digest": "other"}, "model"),
        ({"executor_id": "e1"}, "this is e0, not e1"),
    ],
)
async def test_scheduler_of_something_else_changes_nothing(
    executor: ExecutorEnd, fields: dict[str, object], reason: str
) -> None:
    stream = executor.connect()
    await stream.send_hello(epoch=9, leader_id="x", **fields)
    code, details = await stream.end()
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert reason in details
    assert executor.service.ledger.epoch_seen == 0


async def test_gap_closes_the_stream_and_loses_nothing(executor: ExecutorEnd) -> None:
    stream = await executor.opened()
    await stream.step(1)
    await stream.read_result()
    await stream.step(3)
    code, details = await stream.end()
    assert code is grpc.StatusCode.ABORTED
    assert "step 3 after step 1" in details
    again = await executor.opened()
    assert (await again.read_result()).step_id == 1
    await again.step(2)
    assert (await again.read_result()).step_id == 2


async def test_step_of_a_wrong_generation_closes_the_stream(executor: ExecutorEnd) -> None:
    stream = await executor.opened()
    await stream.step(1, SECOND)
    assert (await stream.end())[0] is grpc.StatusCode.ABORTED
    assert executor.runner.ran == []


async def test_duplicate_step_is_ignored(executor: ExecutorEnd) -> None:
    stream = await executor.opened()
    for step_id in (1, 1, 2):
        await stream.step(step_id)
    assert [(await stream.read_result()).step_id, (await stream.read_result()).step_id] == [1, 2]


async def test_failed_step_is_told_and_another_generation_goes_on(executor: ExecutorEnd) -> None:
    executor.runner.failing = {1}
    stream = await executor.opened()
    await stream.step(1)
    await stream.step(2)
    failed = (await stream.read()).step_failed
    assert (failed.step_id, failed.error) == (1, "RuntimeError: out of memory")
    await stream.open(SECOND, next_step_id=3)
    await stream.step(3, SECOND)
    assert (await stream.read_result()).step_id == 3
    assert executor.runner.ran == [(FIRST, 1), (SECOND, 3)]
    assert executor.runner.num_resets == 2


async def test_next_leader_is_told_of_the_failure_too(executor: ExecutorEnd) -> None:
    executor.runner.failing = {1}
    old = await executor.opened()
    await old.step(1)
    await old.read()
    new = await executor.opened(epoch=2, leader_id="b")
    assert (await new.read()).step_failed.step_id == 1


async def test_new_generation_waits_for_the_old_step_and_drops_its_result(
    executor: ExecutorEnd,
) -> None:
    executor.runner.gate.clear()
    stream = await executor.opened()
    await stream.step(1)
    await asyncio.to_thread(executor.runner.started.wait)
    await stream.open(SECOND, next_step_id=2)
    await stream.step(2, SECOND)
    executor.runner.gate.set()
    result = await stream.read_result()
    assert (result.generation, result.step_id) == (SECOND, 2)
    assert executor.runner.ran == [(FIRST, 1), (SECOND, 2)]
    assert executor.service.num_late_results == 1


async def test_step_above_grpcs_default_limit_arrives(executor: ExecutorEnd) -> None:
    stream = await executor.opened()
    body = wire.encode_step(make_plan(1, num_tokens=5_000_000))
    assert len(body) > 4 * 1024 * 1024
    await stream.call.write(body)
    assert (await stream.read_result()).step_id == 1
    assert executor.runner.num_prompt_tokens == 5_000_000


async def test_alive_goes_on_during_a_long_step(executor: ExecutorEnd) -> None:
    executor.runner.gate.clear()
    stream = await executor.opened()
    await stream.step(1)
    await asyncio.to_thread(executor.runner.started.wait)
    message = await stream.call.read()
    while message.alive.running_ms == 0:  # those were sent before the step came
        message = await stream.call.read()
    assert message.alive.running_step_id == 1
    later = await stream.call.read()
    assert later.alive.running_ms > message.alive.running_ms


async def test_stop_says_goodbye_and_refuses_new_streams(executor: ExecutorEnd) -> None:
    stream = await executor.opened()
    executor.service.stop("maintenance")
    assert (await stream.read()).goodbye.reason == "maintenance"
    assert (await stream.end())[0] is grpc.StatusCode.OK
    late = executor.connect()
    await late.send_hello(epoch=2, leader_id="b")
    assert (await late.end())[0] is grpc.StatusCode.FAILED_PRECONDITION


async def test_vanished_scheduler_does_not_lose_the_result(
    executor: ExecutorEnd,
) -> None:
    executor.runner.gate.clear()
    old = await executor.opened()
    await old.step(1)
    await asyncio.to_thread(executor.runner.started.wait)
    old.call.cancel()
    executor.runner.gate.set()
    new = await executor.opened()
    assert (await new.read_result()).step_id == 1
    assert executor.runner.ran == [(FIRST, 1)]


async def test_step_before_hello_is_refused(executor: ExecutorEnd) -> None:
    stream = executor.connect()
    await stream.step(1, Generation(1, 1))
    assert (await stream.end())[0] is grpc.StatusCode.ABORTED


async def test_unreadable_step_closes_the_stream(executor: ExecutorEnd) -> None:
    """A shifted column would give one request's tokens to another."""
    stream = await executor.opened()
    request = executor_pb2.ExecuteRequest.FromString(wire.encode_step(make_plan(1)))
    request.step.is_sampled.append(True)
    await stream.call.write(request)
    assert (await stream.end())[0] is grpc.StatusCode.INVALID_ARGUMENT
    assert executor.runner.ran == []


async def test_health_is_kept_for_each_service(executor: ExecutorEnd) -> None:
    async with open_channel(executor.address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        for service in ("", EXECUTOR_SERVICE):
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_port_that_is_taken_is_an_error(executor: ExecutorEnd) -> None:
    server = make_server()
    with pytest.raises(OSError, match=executor.address):
        bind(server, executor.address)
    await server.stop(None)
