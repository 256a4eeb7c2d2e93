"""A client that comes back with Last-Event-ID goes on exactly where it was, through any gateway."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from segue.model_files.hand import write_hand_model
from segue.types import Submission
from tests.running_gateway import RunningGateway, serve_gateway, serve_stub
from tests.scheduler_stub import Reply, SchedulerStub

TEXT = "Die Katze 👩‍👩‍👧‍👦 sitzt; 漢字 ## und ###mehr"
SHOWN = "Die Katze 👩‍👩‍👧‍👦 sitzt; 漢字 ## und "


@dataclass(slots=True)
class Seen:
    """What a client has of a stream."""

    last_event_id: str = ""
    data: list[dict[str, Any]] = field(default_factory=list)
    is_done: bool = False

    @property
    def call_id(self) -> str:
        return self.last_event_id.partition(";")[0]

    def texts(self) -> dict[int, str]:
        texts: dict[int, str] = {}
        for data in self.data:
            for choice in data.get("choices", []):
                piece = choice["text"] if "text" in choice else choice["delta"].get("content", "")
                texts[choice["index"]] = texts.get(choice["index"], "") + piece
        return texts

    def num_ends(self) -> int:
        return sum(bool(c["finish_reason"]) for d in self.data for c in d.get("choices", []))

    def errors(self) -> list[str]:
        return [data["error"]["code"] for data in self.data if "error" in data]


async def _read(response: httpx.Response, seen: Seen, num_events: int | None = None) -> None:
    async for line in response.aiter_lines():
        if line.startswith("id: "):
            seen.last_event_id = line.removeprefix("id: ")
        elif line == "data: [DONE]":
            seen.is_done = True
        elif line.startswith("data: "):
            seen.data.append(json.loads(line.removeprefix("data: ")))
            if num_events is not None and len(seen.data) >= num_events:
                return


async def _begin(running: RunningGateway, seen: Seen, num_events: int, **fields: Any) -> None:
    """Reads that many events, and leaves the connection."""
    body = {"prompt": "p", "stream": True, "stop": "###", "max_tokens": 500, **fields}
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    async with running.http.stream("POST", path, json=body) as response:
        await _read(response, seen, num_events)


async def _resume(running: RunningGateway, seen: Seen, event_id: str | None = None) -> int:
    last = seen.last_event_id if event_id is None else event_id
    headers = {"Last-Event-ID": last} if last else {}
    path = f"/v1/streams/{seen.call_id}"
    async with running.http.stream("GET", path, headers=headers) as response:
        if response.status_code == 200:
            await _read(response, seen)
        return response.status_code


@pytest.fixture
async def stub() -> SchedulerStub:
    return SchedulerStub(lambda submission: Reply(TEXT.encode()))


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    return write_hand_model(tmp_path)


@pytest.fixture
async def address(stub: SchedulerStub) -> AsyncIterator[str]:
    async with serve_stub(stub) as address:
        yield address


async def _die(running: RunningGateway, stub: SchedulerStub, gateway_id: str) -> None:
    """As a killed gateway: its session breaks, and it says nothing more."""
    running.gateway.client.release = lambda live, reason: None  # type: ignore[method-assign]
    stub.sessions.pop(gateway_id, None)


@pytest.mark.parametrize("num_events", [1, 2, 9, 30])
@pytest.mark.parametrize("kind", ["completion", "chat"])
async def test_another_gateway_goes_on_after_the_last_event(
    address: str, stub: SchedulerStub, model_dir: Path, num_events: int, kind: str
) -> None:
    seen = Seen()
    fields: dict[str, Any] = {"stream_options": {"include_usage": True}}
    if kind == "chat":
        fields["messages"] = [{"role": "user", "content": "hi"}]
    async with (
        serve_gateway(model_dir, address, gateway_id="g0") as first,
        serve_gateway(model_dir, address, gateway_id="g1") as second,
    ):
        await _die(first, stub, "none")
        await _begin(first, seen, num_events, **fields)
        status = await _resume(second, seen)

    assert status == 200
    assert seen.texts() == {0: SHOWN}
    assert (seen.num_ends(), seen.errors(), seen.is_done) == (1, [], True)
    assert seen.data[-1]["usage"]["completion_tokens"] == len((SHOWN + "###").encode())
    assert len({data["id"] for data in seen.data}) == 1
    assert "\ufffd" not in seen.texts()[0]


async def test_all_choices_go_on_each_from_its_own_place(
    address: str, stub: SchedulerStub, model_dir: Path
) -> None:
    def reply(submission: Submission) -> Reply:
        return Reply(f"{submission.choice} says {TEXT}".encode())

    stub.reply = reply
    seen = Seen()
    async with (
        serve_gateway(model_dir, address, gateway_id="g0") as first,
        serve_gateway(model_dir, address, gateway_id="g1") as second,
    ):
        await _die(first, stub, "none")
        await _begin(first, seen, 20, n=3, return_token_ids=True, logprobs=1)
        await _resume(second, seen)

    assert seen.texts() == {i: f"{i} says {SHOWN}" for i in range(3)}
    assert seen.num_ends() == 3
    ids: dict[int, list[int]] = {}
    num_logprobs: dict[int, int] = {}
    for data in seen.data:
        for choice in data["choices"]:
            ids.setdefault(choice["index"], []).extend(choice["token_ids"])
            count = len(choice["logprobs"]["tokens"]) if choice["logprobs"] else 0
            num_logprobs[choice["index"]] = num_logprobs.get(choice["index"], 0) + count
    assert {i: bytes(tokens) for i, tokens in ids.items()} == {
        i: f"{i} says {SHOWN}###".encode() for i in range(3)
    }
    assert num_logprobs == {i: len(tokens) for i, tokens in ids.items()}


async def test_every_event_is_a_place_to_go_on_from(
    address: str, stub: SchedulerStub, model_dir: Path
) -> None:
    """After the end too: whatever event a client saw last, what follows completes it."""
    whole = Seen()
    async with serve_gateway(model_dir, address) as running:
        body = {"prompt": "p", "stream": True, "stop": "###", "max_tokens": 500}
        ids: list[str] = []
        async with running.http.stream("POST", "/v1/completions", json=body) as response:
            async for line in response.aiter_lines():
                if line.startswith("id: "):
                    ids.append(line.removeprefix("id: "))
                elif line.startswith("data: {"):
                    whole.data.append(json.loads(line.removeprefix("data: ")))
        whole.last_event_id = ids[-1]
        assert whole.texts() == {0: SHOWN}

        for num_seen, event_id in enumerate(ids, start=1):
            seen = Seen(last_event_id=event_id, data=whole.data[:num_seen])
            assert await _resume(running, seen) == 200
            assert (seen.texts(), seen.num_ends(), seen.is_done) == ({0: SHOWN}, 1, True)


async def test_without_a_last_event_id_the_stream_comes_whole(
    address: str, stub: SchedulerStub, model_dir: Path
) -> None:
    first, again = Seen(), Seen()
    async with serve_gateway(model_dir, address) as running:
        await _begin(running, first, 1000)
        again.last_event_id = first.call_id
        status = await _resume(running, again, event_id="")

    assert status == 200
    assert again.texts() == first.texts() == {0: SHOWN}


async def test_another_text_is_an_error_not_a_continuation(
    address: str, stub: SchedulerStub, model_dir: Path
) -> None:
    """Gateway and Redis's tail lost together, and the ids came out differently (H25)."""
    seen = Seen()
    async with (
        serve_gateway(model_dir, address, gateway_id="g0") as first,
        serve_gateway(model_dir, address, gateway_id="g1") as second,
    ):
        await _die(first, stub, "none")
        await _begin(first, seen, 9)
        (request,) = stub.requests.values()
        request.reply = Reply(b"Die Maus ist eine andere Geschichte.")
        request.num_output = 0
        before = seen.texts()
        await _resume(second, seen)

    assert (seen.texts(), seen.errors(), seen.is_done) == (before, ["stream_diverged"], False)


async def test_what_is_computed_again_is_waited_for_and_then_continued(
    address: str, stub: SchedulerStub, model_dir: Path
) -> None:
    seen = Seen()
    async with (
        serve_gateway(model_dir, address, gateway_id="g0") as first,
        serve_gateway(model_dir, address, gateway_id="g1") as second,
    ):
        await _die(first, stub, "none")
        await _begin(first, seen, 9)
        (request,) = stub.requests.values()
        request.num_output = 0
        await _resume(second, seen)

    assert (seen.texts(), seen.errors()) == ({0: SHOWN}, [])


async def test_a_resumed_stream_survives_the_scheduler_as_well(
    address: str, stub: SchedulerStub, model_dir: Path
) -> None:
    seen = Seen()
    async with (
        serve_gateway(model_dir, address, gateway_id="g0") as first,
        serve_gateway(model_dir, address, gateway_id="g1") as second,
    ):
        await _die(first, stub, "none")
        await _begin(first, seen, 5)
        stub.is_running = False
        resumed = asyncio.create_task(_resume(second, seen))
        await stub.until(lambda: any(r.owner == "g1" for r in stub.requests.values()))
        stub.wipe()
        await stub.until(lambda: stub.requests)
        stub.is_running = True
        await resumed

    assert (seen.texts(), seen.errors(), seen.num_ends()) == ({0: SHOWN}, [], 1)


async def test_the_same_gateway_hands_a_running_stream_to_the_new_connection(
    address: str, stub: SchedulerStub, model_dir: Path
) -> None:
    stub.is_running = False
    old, new = Seen(), Seen()
    async with serve_gateway(model_dir, address) as running:
        begun = asyncio.create_task(_begin(running, old, 1000))
        await stub.until(lambda: stub.requests)
        stub.step(4)
        async with asyncio.timeout(5):
            while not old.data:
                await asyncio.sleep(0.01)
        new.last_event_id = old.last_event_id
        resumed = asyncio.create_task(_resume(running, new))
        await begun
        stub.is_running = True
        await resumed

    assert old.texts()[0] + new.texts()[0] == SHOWN
    assert (old.is_done, new.is_done) == (False, True)
    assert {abort.reason for abort in stub.aborts} == {"stop string"}


async def test_a_stream_that_was_taken_over_elsewhere_ends_with_an_error(
    address: str, stub: SchedulerStub, model_dir: Path
) -> None:
    stub.is_running = False
    old, new = Seen(), Seen()
    async with (
        serve_gateway(model_dir, address, gateway_id="g0") as first,
        serve_gateway(model_dir, address, gateway_id="g1") as second,
    ):
        begun = asyncio.create_task(_begin(first, old, 1000))
        await stub.until(lambda: stub.requests)
        stub.step(4)
        async with asyncio.timeout(5):
            while not old.data:
                await asyncio.sleep(0.01)
        new.last_event_id = old.last_event_id
        resumed = asyncio.create_task(_resume(second, new))
        await begun
        stub.is_running = True
        await resumed

    assert old.errors() == ["detached"]
    assert old.texts()[0] + new.texts()[0] == SHOWN
    assert {abort.reason for abort in stub.aborts} == {"stop string"}


async def test_what_nobody_knows_is_not_found(
    address: str, stub: SchedulerStub, model_dir: Path
) -> None:
    async with serve_gateway(model_dir, address) as running:
        answer = await running.http.get("/v1/streams/cmpl-never")

    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "stream_not_found"


@pytest.mark.parametrize(
    "event_id",
    ["cmpl-other;0:1:1:0123456789abcdef", "cmpl-x;0:1:1:abc", "cmpl-x;a", "cmpl-x;0:-1:1:0"],
)
async def test_an_event_id_that_is_not_ours_is_refused(
    address: str, stub: SchedulerStub, model_dir: Path, event_id: str
) -> None:
    async with serve_gateway(model_dir, address) as running:
        headers = {"Last-Event-ID": event_id}
        answer = await running.http.get("/v1/streams/cmpl-x", headers=headers)

    assert answer.status_code == 400
