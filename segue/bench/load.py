"""Puts a load on a server: so many streams at a time, or each request when it is due.

Knows asyncio; what an answer is, `openai_stream` knows. Invariant: every request ends as an answer
or as a failure, and none is left out of the result.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from segue.bench.openai_stream import Answer, RequestFailed, complete
from segue.bench.workload import BenchRequest


@dataclass(slots=True, frozen=True)
class Target:
    """The server, and what every request tells it."""

    url: str
    model: str
    api_key: str = ""
    temperature: float = 0.0
    timeout_s: float = 600.0

    def body(self, request: BenchRequest) -> dict[str, Any]:
        return {
            "model": self.model,
            "prompt": list(request.prompt),
            "max_tokens": request.max_tokens,
            "temperature": self.temperature,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


@dataclass(slots=True)
class LoadResult:
    seconds: float = 0.0
    answers: list[Answer] = field(default_factory=list[Answer])
    failures: list[str] = field(default_factory=list[str])


async def run_closed_loop(
    target: Target, requests: Sequence[BenchRequest], num_streams: int
) -> LoadResult:
    """Each stream asks again as soon as it was answered."""
    waiting = iter(requests)
    result = LoadResult()

    async def stream() -> None:
        for request in waiting:  # shared: whoever is free takes the next
            await _ask(target, request, result)

    started = time.perf_counter()
    await asyncio.gather(*(stream() for _ in range(num_streams)))
    result.seconds = time.perf_counter() - started
    return result


async def run_open_loop(target: Target, requests: Sequence[BenchRequest]) -> LoadResult:
    """Each request is sent when it is due, whatever the server has still to do."""
    result = LoadResult()
    started = time.perf_counter()

    async def at_its_time(request: BenchRequest) -> None:
        await asyncio.sleep(started + request.arrival_s - time.perf_counter())
        await _ask(target, request, result)

    await asyncio.gather(*(at_its_time(request) for request in requests))
    result.seconds = time.perf_counter() - started
    return result


async def _ask(target: Target, request: BenchRequest, result: LoadResult) -> None:
    try:
        async with asyncio.timeout(target.timeout_s):
            answer = await complete(target.url, target.body(request), target.api_key)
    except TimeoutError:
        result.failures.append(f"no whole answer within {target.timeout_s:g} s")
    except RequestFailed as error:
        result.failures.append(str(error))
    else:
        result.answers.append(answer)
