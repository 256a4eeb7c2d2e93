"""Streams of the official OpenAI client, kept open while something is killed.

Knows the API only. Invariant: what a stream gave is compared with what the same request gives when
nothing is disturbed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any, Protocol

from openai import AsyncOpenAI


class Serving(Protocol):
    """Where it answers, and the name of its model."""

    @property
    def url(self) -> str: ...

    @property
    def model(self) -> str: ...


@dataclass(slots=True, frozen=True)
class Ask:
    """One request. Seeded where the temperature is above 0."""

    prompt: str
    seed: int
    temperature: float
    max_tokens: int

    def body(self, model: str) -> dict[str, Any]:
        return {
            "model": model,
            "prompt": self.prompt,
            "seed": self.seed,
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "extra_body": {"ignore_eos": True, "return_token_ids": True},
        }


@dataclass(slots=True)
class Stream:
    """What one stream has given so far."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None


def asks(count: int, max_tokens: int) -> list[Ask]:
    """Half of them greedy, half seeded; all prompts different."""
    return [
        Ask(f"Number {index}: tell me about the sea.", index, float(index % 2), max_tokens)
        for index in range(count)
    ]


async def read(client: AsyncOpenAI, ask: Ask, model: str, into: Stream) -> None:
    chunks = await client.completions.create(**ask.body(model), stream=True)
    async for chunk in chunks:
        for choice in chunk.choices:
            into.text += choice.text
            into.token_ids += getattr(choice, "token_ids", None) or []
            into.finish_reason = choice.finish_reason or into.finish_reason


class Streams:
    """Several streams at once. `async with` ends when each has ended.

    `urls`: of several gateways, which take them in turn.
    """

    def __init__(self, served: Serving, asked: list[Ask], urls: Sequence[str] = ()) -> None:
        self._clients = [
            AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=100)
            for url in urls or [served.url]
        ]
        self._asked = asked
        self._model = served.model
        self.all = [Stream() for _ in asked]
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Streams:
        self._tasks = [
            asyncio.create_task(read(client, ask, self._model, stream))
            for client, ask, stream in zip(cycle(self._clients), self._asked, self.all)
        ]
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            for task in self._tasks:
                task.cancel()
        try:
            await asyncio.gather(*self._tasks, return_exceptions=kind is not None)
        finally:
            for client in self._clients:
                await client.close()

    def num_tokens(self) -> int:
        """Of all streams together."""
        return sum(len(stream.token_ids) for stream in self.all)

    async def reach_together(self, num_tokens: int) -> None:
        """Until all streams together have this many tokens. All have to be open still."""
        await self._until(lambda: self.num_tokens() >= num_tokens)

    async def reach(self, num_tokens: int) -> None:
        """Until each stream has this many tokens. All have to be open still."""
        await self._until(lambda: min(len(stream.token_ids) for stream in self.all) >= num_tokens)

    async def _until(self, is_reached: Callable[[], bool]) -> None:
        while not is_reached():
            for task in self._tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(0.005)
        assert all(stream.finish_reason is None for stream in self.all), "a stream ended too early"


async def undisturbed(served: Serving, asked: list[Ask]) -> list[Stream]:
    async with Streams(served, asked) as streams:
        pass
    return streams.all
