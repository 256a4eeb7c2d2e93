"""A closed loop of streaming completions: each stream asks again as soon as it was answered.

Knows HTTP/1.1 and OpenAI's events; asyncio alone, since client and server share the machine.
Invariant: a stream that is not answered in full is an error, so no figure comes of half a run.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

EVENT = b"data: "
DONE = b"[DONE]"
READ_LIMIT = 1 << 20


@dataclass(slots=True, frozen=True)
class Load:
    """What each stream asks for. Prompts are random token ids, no two alike."""

    model: str
    vocab_size: int
    num_streams: int
    requests_per_stream: int = 2
    prompt_tokens: int = 128
    output_tokens: int = 128

    def bodies(self, rng: random.Random) -> list[dict[str, Any]]:
        return [
            {
                "model": self.model,
                "prompt": [rng.randrange(self.vocab_size) for _ in range(self.prompt_tokens)],
                "max_tokens": self.output_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
            for _ in range(self.num_streams * self.requests_per_stream)
        ]


@dataclass(slots=True, frozen=True)
class Answer:
    """Seconds: to the first token, and between any two events that carry tokens."""

    ttft_s: float
    itl_s: list[float]
    num_tokens: int


@dataclass(slots=True, frozen=True)
class LoopResult:
    seconds: float
    answers: list[Answer]

    @property
    def tokens_per_s(self) -> float:
        return sum(answer.num_tokens for answer in self.answers) / self.seconds

    @property
    def ttft_s(self) -> list[float]:
        return [answer.ttft_s for answer in self.answers]

    @property
    def itl_s(self) -> list[float]:
        return [gap for answer in self.answers for gap in answer.itl_s]


def percentile(values: Sequence[float], share: float) -> float:
    """By nearest rank: one of the values, so that p99 of few is the largest."""
    assert values
    assert 0 <= share <= 1
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


async def run_closed_loop(url: str, load: Load, seed: int) -> LoopResult:
    bodies = load.bodies(random.Random(seed))
    answers: list[Answer] = []

    async def stream(index: int) -> None:
        for body in bodies[index :: load.num_streams]:
            answer = await complete(url, body)
            if answer.num_tokens != load.output_tokens:
                raise RuntimeError(f"{answer.num_tokens} tokens of {load.output_tokens} came")
            answers.append(answer)

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for index in range(load.num_streams):
            group.create_task(stream(index))
    return LoopResult(time.perf_counter() - started, answers)


async def complete(url: str, body: dict[str, Any]) -> Answer:
    """One streaming completion, on a connection of its own."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=READ_LIMIT)
    try:
        content = json.dumps(body).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        started = time.perf_counter()
        writer.write(head.encode() + content)
        status = await reader.readline()
        while (line := await reader.readline()).strip():
            assert line
        if b" 200 " not in status:
            raise RuntimeError(f"{status!r}: {(await reader.read(2000))!r}")
        return await _read_events(reader, started)
    finally:
        writer.close()


async def _read_events(reader: asyncio.StreamReader, started: float) -> Answer:
    arrivals: list[float] = []
    num_tokens = 0
    async for event in _events(reader):
        usage = event.get("usage")
        if usage is not None:
            num_tokens = usage["completion_tokens"]
        if any(choice["text"] for choice in event["choices"]):
            arrivals.append(time.perf_counter())
    if not arrivals:
        raise RuntimeError("a stream ended without a token")
    gaps = [later - earlier for earlier, later in pairwise(arrivals)]
    return Answer(arrivals[0] - started, gaps, num_tokens)


async def _events(reader: asyncio.StreamReader) -> AsyncIterator[dict[str, Any]]:
    """The JSON of each event of a chunked answer, up to [DONE]."""
    rest = b""
    while size := int(await reader.readline(), 16):
        *lines, rest = (rest + await reader.readexactly(size)).split(b"\n")
        await reader.readexactly(2)  # CRLF
        for line in lines:
            if line.startswith(EVENT):
                data = line.removeprefix(EVENT)
                if data.strip() == DONE:
                    return
                yield json.loads(data)
    raise RuntimeError("the stream ended without [DONE]")
