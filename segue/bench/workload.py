"""What is asked for: prompts and lengths, at random or as a public trace recorded them.

Knows no server. Invariant: the same seed gives the same requests in the same order, and what is
random about a prompt depends on its place in the list alone.
"""

from __future__ import annotations

import csv
import gzip
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import IO

AZURE_TIME_FORMAT = "%Y-%m-%d %H:%M:%S.%f"
MOONCAKE_BLOCK_TOKENS = 512  # that one of its hash ids stands for
# Ids that are ordinary tokens in most vocabularies: what lies below is often special.
COMMON_TOKEN_IDS = range(1000, 30000)


class WorkloadError(Exception):
    """The trace can not be used; the message is one readable line."""


@dataclass(slots=True, frozen=True)
class BenchRequest:
    prompt: tuple[int, ...]
    max_tokens: int
    arrival_s: float = 0.0  # since the first; not used by a closed loop


@dataclass(slots=True, frozen=True)
class PromptSource:
    """Where random prompts come from."""

    seed: int
    token_ids: range = COMMON_TOKEN_IDS

    def random(self, *more: object) -> random.Random:
        return random.Random(" ".join(map(str, (self.seed, *more))))

    def prompt(self, rng: random.Random, count: int) -> tuple[int, ...]:
        return tuple(rng.choices(self.token_ids, k=count))


@dataclass(slots=True, frozen=True)
class TraceScale:
    """How a trace is made to fit: lengths and times are multiplied, then limited."""

    length: float = 1.0
    time: float = 1.0
    max_prompt_tokens: int = 1 << 30
    max_output_tokens: int = 1 << 30


def random_requests(
    count: int, prompt_tokens: int, output_tokens: int, source: PromptSource
) -> list[BenchRequest]:
    """No two prompts are alike."""
    rng = source.random()
    return [BenchRequest(source.prompt(rng, prompt_tokens), output_tokens) for _ in range(count)]


def with_poisson_arrivals(
    requests: Iterable[BenchRequest], rate: float, seed: int
) -> list[BenchRequest]:
    """`rate` a second, with exponential gaps."""
    rng = random.Random(seed)
    now, arriving = 0.0, list[BenchRequest]()
    for request in requests:
        arriving.append(BenchRequest(request.prompt, request.max_tokens, now))
        now += rng.expovariate(rate)
    return arriving


def read_trace(
    path: Path, limit: int, scale: TraceScale, source: PromptSource
) -> list[BenchRequest]:
    """Azure's CSV or Mooncake's JSON lines, by their names' endings, .gz or not."""
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
            if ".csv" in path.suffixes:
                return _read_azure(file, limit, scale, source)
            if ".jsonl" in path.suffixes:
                return _read_mooncake(file, limit, scale, source)
    except (OSError, KeyError, ValueError, EOFError) as error:
        raise WorkloadError(f"{path}: {type(error).__name__}: {error}") from error
    raise WorkloadError(f"{path}: neither .csv nor .jsonl, with or without .gz")


def azure_rows(file: IO[str], limit: int | None) -> Iterator[tuple[float, int, int]]:
    """Seconds since the first request, tokens of its prompt, tokens of its answer."""
    first: datetime | None = None
    for row in islice(csv.DictReader(file), limit):
        # strptime reads six decimals, the trace has seven
        time = datetime.strptime(row["TIMESTAMP"][:26], AZURE_TIME_FORMAT)  # noqa: DTZ007
        first = first or time
        arrival_s = (time - first).total_seconds()
        yield arrival_s, int(row["ContextTokens"]), int(row["GeneratedTokens"])


def _read_azure(
    file: IO[str], limit: int, scale: TraceScale, source: PromptSource
) -> list[BenchRequest]:
    """Lengths and times alone; nothing is known of shared text."""
    rng, requests = source.random(), list[BenchRequest]()
    for arrival_s, prompt_tokens, output_tokens in azure_rows(file, limit):
        prompt = source.prompt(rng, _scaled(prompt_tokens, scale.length))
        requests.append(_limited(prompt, output_tokens, arrival_s * scale.time, scale))
    return requests


def _read_mooncake(
    file: IO[str], limit: int, scale: TraceScale, source: PromptSource
) -> list[BenchRequest]:
    """Equal hash ids are equal blocks of text, so prefixes are shared as they were recorded."""
    requests: list[BenchRequest] = []
    block_tokens = _scaled(MOONCAKE_BLOCK_TOKENS, scale.length)
    for line in islice(file, limit):
        row = json.loads(line)
        prompt: list[int] = []
        for hash_id in row["hash_ids"]:
            prompt += source.prompt(source.random(hash_id), block_tokens)
        length = _scaled(int(row["input_length"]), scale.length)
        arrival_s = int(row["timestamp"]) / 1000 * scale.time
        requests.append(
            _limited(tuple(prompt[:length]), int(row["output_length"]), arrival_s, scale)
        )
    return requests


def _limited(
    prompt: Sequence[int], output_tokens: int, arrival_s: float, scale: TraceScale
) -> BenchRequest:
    max_tokens = min(_scaled(output_tokens, scale.length), scale.max_output_tokens)
    return BenchRequest(tuple(prompt[: scale.max_prompt_tokens]), max_tokens, arrival_s)


def _scaled(count: int, factor: float) -> int:
    return max(1, round(count * factor))
