"""A closed loop of streaming completions: each stream asks again as soon as it was answered.

Knows what is asked for; the client is `segue bench`'s.
Invariant: a stream that is not answered in full is an error, so no figure comes of half a run.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from typing import Any

from segue.bench.figures import percentile
from segue.bench.openai_stream import Answer, complete

__all__ = ["Answer", "Load", "LoopResult", "percentile", "run_closed_loop"]


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
