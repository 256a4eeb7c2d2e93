"""A closed loop of streaming completions: each stream asks again as soon as it was answered.

Knows what is asked for; client and loop are `segue bench`'s. Invariant: a stream that is not
answered in full is an error, so no figure comes of half a run.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from segue.bench.figures import percentile
from segue.bench.load import Target
from segue.bench.load import run_closed_loop as load_server
from segue.bench.openai_stream import Answer
from segue.bench.workload import BenchRequest

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

    def requests(self, rng: random.Random) -> list[BenchRequest]:
        return [
            BenchRequest(
                tuple(rng.randrange(self.vocab_size) for _ in range(self.prompt_tokens)),
                self.output_tokens,
            )
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
    requests = load.requests(random.Random(seed))
    found = await load_server(Target(url, load.model), requests, load.num_streams)
    if found.failures:
        raise RuntimeError(found.failures[0])
    for answer in found.answers:
        if answer.num_tokens != load.output_tokens:
            raise RuntimeError(f"{answer.num_tokens} tokens of {load.output_tokens} came")
    return LoopResult(found.seconds, found.answers)
