"""The bench's own arithmetic, and its client against answers that are cut short."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from segue.bench.openai_stream import RequestFailed, complete
from tests.bench.closed_loop import Load, percentile

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
TOKEN = b'id: x\ndata: {"choices":[{"text":"a"}]}\n\n'
HELD_BACK = b'data: {"choices":[{"text":""}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"completion_tokens":3}}\n\n'
DONE = b"data: [DONE]\n\n"


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


@asynccontextmanager
async def server(answer: bytes) -> AsyncIterator[str]:
    """Gives every request the same bytes, and hangs up."""

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    listening = await asyncio.start_server(respond, "127.0.0.1", 0)
    host, port = listening.sockets[0].getsockname()
    async with listening:
        yield f"http://{host}:{port}"


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 1.0), (0.5, 3.0), (0.75, 4.0), (0.99, 4.0), (1.0, 4.0)]
)
def test_a_percentile_is_one_of_the_values(share: float, expected: float) -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], share) == expected


def test_no_two_prompts_are_alike() -> None:
    load = Load("m", 1000, 4, 2, prompt_tokens=16, output_tokens=8)
    requests = load.requests(random.Random(1))
    assert len(requests) == 8
    assert len({request.prompt for request in requests}) == 8


async def test_tokens_are_counted_where_they_come() -> None:
    """Two events carry text: one gap. Events may share a chunk, or be cut by one."""
    parts = [TOKEN[:10], TOKEN[10:] + HELD_BACK, TOKEN, USAGE + DONE, b""]
    async with server(HEAD + b"".join(map(chunk, parts))) as url:
        answer = await complete(url, {})
    assert answer.num_tokens == 3
    assert len(answer.itl_s) == 1


async def test_a_gap_is_between_arrivals_not_between_readings() -> None:
    """Pieces are read when all have come; each event counts when its last byte was there."""
    may_go_on = asyncio.Event()

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD + chunk(TOKEN) + chunk(TOKEN)[:20])
        await may_go_on.wait()
        writer.write(chunk(TOKEN)[20:] + chunk(USAGE + DONE))  # and never hangs up

    listening = await asyncio.start_server(respond, "127.0.0.1", 0)
    host, port = listening.sockets[0].getsockname()
    async with listening:
        asking = asyncio.create_task(complete(f"http://{host}:{port}", {}))
        asyncio.get_running_loop().call_later(0.05, may_go_on.set)
        answer = await asking
    assert len(answer.itl_s) == 1
    assert answer.itl_s[0] >= 0.04
    assert answer.ttft_s + answer.itl_s[0] == pytest.approx(answer.e2e_s)


async def test_an_answer_in_no_chunks_is_read_too() -> None:
    async with server(b"HTTP/1.1 200 OK\r\n\r\n" + TOKEN + TOKEN + DONE.strip()) as url:
        answer = await complete(url, {})
    assert answer.num_tokens == 2


async def test_a_server_that_hangs_up_is_an_error() -> None:
    async with server(b"") as url:
        with pytest.raises(RequestFailed, match="hung up"):
            await complete(url, {})


async def test_an_answer_without_its_end_is_an_error() -> None:
    async with server(HEAD + chunk(TOKEN) + chunk(b"")) as url:
        with pytest.raises(RequestFailed, match="DONE"):
            await complete(url, {})


async def test_a_refusal_is_an_error() -> None:
    async with server(b"HTTP/1.1 503 Service Unavailable\r\n\r\nbusy") as url:
        with pytest.raises(RequestFailed, match="503"):
            await complete(url, {})
