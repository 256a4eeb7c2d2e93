"""The gateway and a scheduler that dies, lies, forgets, or is not the leader: no client sees it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from segue.model_files.hand import write_hand_model
from segue.types import RequestOutput
from segue.v1 import scheduler_pb2
from tests.running_gateway import RunningGateway, serve_gateway, serve_stub
from tests.scheduler_stub import Reply, SchedulerStub
from tests.streaming_client import StreamingClient

TEXT = "The quick brown fox jumps over the lazy dog."


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    return write_hand_model(tmp_path)


@pytest.fixture
async def stub() -> SchedulerStub:
    return SchedulerStub(lambda submission: Reply(TEXT.encode()))


@pytest.fixture
async def running(stub: SchedulerStub, model_dir: Path) -> AsyncIterator[RunningGateway]:
    async with serve_stub(stub) as address, serve_gateway(model_dir, address) as running:
        yield running


def _gateway_metric(running: RunningGateway, name: str) -> float:
    page = running.gateway.metrics_page().decode()
    line = next(line for line in page.splitlines() if line.startswith(name + "{"))
    return float(line.rpartition(" ")[2])


async def test_a_stream_goes_on_when_its_scheduler_is_killed_again_and_again(
    running: RunningGateway, stub: SchedulerStub
) -> None:
    stub.is_running = False
    client = StreamingClient(running.http)
    for killed in range(1, 5):
        await stub.until(lambda: stub.sessions and stub.requests)
        stub.step(5)
        await client.until(5 * killed)
        stub.lead_anew()
        await stub.until(lambda killed=killed: len(stub.hellos) == killed + 1)
        assert list(stub.hellos[-1].attachments[0].delivered_token_ids) == list(
            TEXT.encode()[: 5 * killed]
        )
        assert stub.hellos[-1].epoch_seen == killed
    stub.is_running = True

    assert (await client.end(), client.errors) == (TEXT, [])
    assert len(stub.submits) == 1


async def test_an_end_that_was_told_is_in_the_next_hello(
    running: RunningGateway, stub: SchedulerStub
) -> None:
    """Redis may have lost it, and would have the request run on for nobody (H36)."""
    assert await StreamingClient(running.http).end() == TEXT
    (request_id,) = stub.requests
    stub.lead_anew()
    await stub.until(lambda: len(stub.hellos) == 2)
    (attachment,) = stub.hellos[-1].attachments
    assert attachment.request_id == request_id
    assert attachment.is_finished
    assert bytes(attachment.delivered_token_ids) == TEXT.encode()


async def test_what_redis_lost_is_submitted_again_whole_with_what_was_delivered(
    running: RunningGateway, stub: SchedulerStub
) -> None:
    stub.is_running = False
    client = StreamingClient(running.http, n=2, seed=7)
    await stub.until(lambda: len(stub.requests) == 2)
    stub.step(5)
    await client.until(10)
    stub.wipe()
    await stub.until(lambda: len(stub.requests) == 2)
    stub.is_running = True
    await client.end()

    first, again = stub.submits
    assert list(first.submissions) == list(again.submissions)
    assert not first.delivered
    assert [bytes(d.delivered_token_ids) for d in again.delivered] == [TEXT.encode()[:5]] * 2
    assert sorted(client.text) == sorted(TEXT * 2)
    assert client.errors == []


async def test_a_lost_tail_is_adopted_from_the_client(
    running: RunningGateway, stub: SchedulerStub
) -> None:
    stub.is_running = False
    client = StreamingClient(running.http)
    await stub.until(lambda: stub.requests)
    stub.step(9)
    await client.until(9)
    (request,) = stub.requests.values()
    request.num_output = 4
    stub.lead_anew()
    await stub.until(lambda: stub.sessions)
    assert request.num_output == 9
    stub.is_running = True

    assert await client.end() == TEXT


async def test_rows_that_come_again_are_compared_and_dropped(
    running: RunningGateway, stub: SchedulerStub
) -> None:
    stub.is_running = False
    client = StreamingClient(running.http)
    await stub.until(lambda: stub.requests)
    stub.step(5)
    await client.until(5)
    (request_id,) = stub.requests
    repeated = RequestOutput(request_id, 2, tuple(TEXT.encode()[2:7]))
    stub.send_outputs(stub.session(), [repeated])
    await client.until(7)
    stub.is_running = True

    assert await client.end() == TEXT
    assert _gateway_metric(running, "segue:gateway_row_mismatches_total") == 0


async def test_a_row_that_contradicts_is_counted_and_never_shown(
    running: RunningGateway, stub: SchedulerStub
) -> None:
    stub.is_running = False
    client = StreamingClient(running.http)
    await stub.until(lambda: stub.requests)
    stub.step(5)
    await client.until(5)
    (request_id,) = stub.requests
    stub.send_outputs(stub.session(), [RequestOutput(request_id, 4, tuple(b"XYZ"))])
    await stub.until(lambda: len(stub.hellos) == 2)
    stub.is_running = True

    assert await client.end() == TEXT
    assert _gateway_metric(running, "segue:gateway_row_mismatches_total") == 1


async def test_a_gap_or_a_lower_epoch_ends_the_session(
    running: RunningGateway, stub: SchedulerStub
) -> None:
    stub.is_running = False
    stub.epoch = 5
    stub.drop_sessions()
    client = StreamingClient(running.http)
    await stub.until(lambda: stub.sessions and stub.requests)
    stub.step(5)
    await client.until(5)
    (request_id,) = stub.requests

    stub.send_outputs(stub.session(), [RequestOutput(request_id, 8, tuple(b"XYZ"))])
    await stub.until(lambda: len(stub.hellos) == 3)
    stub.send_outputs(stub.session(), [RequestOutput(request_id, 5, tuple(b"XYZ"))], epoch=4)
    await stub.until(lambda: len(stub.hellos) == 4)
    stub.is_running = True

    assert await client.end() == TEXT


async def test_a_scheduler_with_a_lower_epoch_or_a_double_is_not_believed(
    running: RunningGateway, stub: SchedulerStub
) -> None:
    stub.epoch = 5
    stub.drop_sessions()
    await stub.until(lambda: len(stub.hellos) == 2)
    client = running.gateway.client
    async with asyncio.timeout(5):
        while client.seen.epoch < 5:
            await asyncio.sleep(0.01)

    stub.epoch = 4
    stub.drop_sessions()
    await stub.until(lambda: len(stub.hellos) >= 5)
    assert not client.availability.is_connected
    stub.epoch, stub.leader_id = 5, "a double"
    await stub.until(lambda: len(stub.hellos) >= 7)
    assert not client.availability.is_connected
    assert (client.seen.epoch, client.seen.leader_id) == (5, "leader-1")


async def test_the_leader_is_found_through_one_that_is_not(model_dir: Path) -> None:
    leader, other = SchedulerStub(), SchedulerStub()
    other.leads = False
    async with serve_stub(leader) as leader_address, serve_stub(other) as other_address:
        other.leader_address = leader_address
        async with serve_gateway(model_dir, other_address) as running:
            answer = await running.http.post("/v1/completions", json={"prompt": "abc"})

    assert answer.json()["choices"][0]["text"] == "abc"


async def test_a_stopped_leader_is_left_for_another(model_dir: Path) -> None:
    stopped = SchedulerStub(lambda submission: Reply(TEXT.encode()))
    stopped.is_running = False
    successor = SchedulerStub(lambda submission: Reply(TEXT.encode()))
    successor.epoch, successor.leads = 2, False
    async with (
        serve_stub(stopped) as first,
        serve_stub(successor) as second,
        serve_gateway(model_dir, first, second, lease_ttl_s=0.4) as running,
    ):
        client = StreamingClient(running.http)
        await stopped.until(lambda: stopped.requests)
        stopped.step(7)
        await client.until(7)
        stopped.is_silent = True
        stopped.leads = False
        successor.requests = stopped.requests
        successor.leads = True

        assert await client.end() == TEXT
        assert list(successor.hellos[0].attachments[0].delivered_token_ids) == list(
            TEXT.encode()[:7]
        )


async def test_a_stop_string_aborts_the_request_and_is_not_shown(
    running: RunningGateway, stub: SchedulerStub
) -> None:
    client = StreamingClient(running.http, stop=[" fox", "lazy"])

    assert await client.end() == "The quick brown"
    await stub.until(lambda: stub.aborts)
    assert stub.aborts[0].reason == "stop string"


async def test_half_a_stop_string_is_held_back_while_the_scheduler_is_killed(
    running: RunningGateway, stub: SchedulerStub
) -> None:
    stub.is_running = False
    client = StreamingClient(running.http, stop=["quiet", "fox jumps"])
    await stub.until(lambda: stub.requests)
    stub.step(7)
    await client.until(4)
    assert client.text == "The "
    stub.lead_anew()
    await stub.until(lambda: stub.sessions)
    stub.is_running = True

    assert await client.end() == "The quick brown "


async def test_goodbye_and_not_leader_messages_make_it_look_elsewhere(
    running: RunningGateway, stub: SchedulerStub
) -> None:
    response = scheduler_pb2.SessionResponse(not_leader=scheduler_pb2.NotLeader())
    stub.session().outgoing.put_nowait(response)
    await stub.until(lambda: len(stub.hellos) == 2)

    assert stub.hellos[1].session_id != stub.hellos[0].session_id
