"""A recorded load: when requests arrive, how long their prompts and answers are.

Knows nothing about policies or what a step costs. Invariant: no row of the trace is left out, and
no two prompts begin alike, since the trace says nothing about shared text.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from segue.bench.workload import azure_rows
from segue.types import SamplingParams, Submission

TRACE = Path(__file__).parent / "data" / "azure_llm_2023_conv_1000.csv.gz"
MAX_TOKENS = 1000  # the longest answers of the whole trace, 11 of its 19,366
EOS = 2


@dataclass(slots=True, frozen=True)
class TracedRequest:
    arrival_s: float  # since the first request's
    num_prompt_tokens: int
    num_output_tokens: int


@dataclass(slots=True, frozen=True)
class Load:
    """`num_output_tokens`, by request: when the model says EOS. No policy can see it."""

    submissions: list[Submission]
    num_output_tokens: dict[str, int]


def read_trace(path: Path = TRACE, *, limit: int | None = None) -> list[TracedRequest]:
    with gzip.open(path, "rt") as file:
        return [TracedRequest(*row) for row in azure_rows(file, limit)]


def make_load(trace: list[TracedRequest], rate: float, *, tells_lengths: bool = False) -> Load:
    """Requests that arrive `rate` times as fast as recorded.

    Each may have `MAX_TOKENS`; or, with `tells_lengths`, as many as it will use.
    """
    starts = accumulate((one.num_prompt_tokens for one in trace), initial=0)
    load = Load([], {})
    for number, (start, one) in enumerate(zip(starts, trace, strict=False)):
        request_id = f"cmpl-{number:016x}-0"
        max_tokens = one.num_output_tokens if tells_lengths else MAX_TOKENS
        params = SamplingParams(seed=number, max_tokens=max_tokens, eos_token_id=EOS)
        prompt = tuple(range(start, start + one.num_prompt_tokens))
        arrival_ms = round(one.arrival_s * 1000 / rate)
        load.submissions.append(Submission(request_id, prompt, params, arrival_ms))
        load.num_output_tokens[request_id] = one.num_output_tokens
    return load
