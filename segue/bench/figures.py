"""From answers to figures, by the field's definitions.

TTFT: sent to first text. TPOT: (end - first text) / (tokens - 1). ITL: gaps between events with
text. E2E: sent to end. Goodput: requests a second that keep every limit of a service level.
Knows no server. Invariant: a percentile is one of the values (nearest rank), never between two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from segue.bench.load import LoadResult
from segue.bench.openai_stream import Answer

PERCENTILES = (0.5, 0.9, 0.99)
LIMITED = ("ttft", "tpot", "e2e")


class BadLimit(ValueError):
    """Of a service level; the message is one readable line."""


def percentile(values: Sequence[float], share: float) -> float:
    """By nearest rank: one of the values, so that p99 of few is the largest."""
    assert values
    assert 0 <= share <= 1
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def parse_limits(texts: Sequence[str]) -> dict[str, float]:
    """`ttft:500` and the like, milliseconds, to seconds."""
    limits: dict[str, float] = {}
    for text in texts:
        name, _, value = text.partition(":")
        try:
            limits[name] = float(value) / 1000
        except ValueError:
            limits[name] = -1.0
        if name not in LIMITED or limits[name] <= 0:
            raise BadLimit(f"{text!r} is not one of {', '.join(LIMITED)} with :MILLISECONDS")
    return limits


def figures(result: LoadResult, limits: Mapping[str, float] | None = None) -> dict[str, Any]:
    """Times in milliseconds."""
    answers, seconds = result.answers, result.seconds
    counts = {
        "requests": len(answers),
        "failed": len(result.failures),
        "seconds": round(seconds, 3),
        "prompt_tokens": sum(answer.num_prompt_tokens for answer in answers),
        "cached_tokens": sum(answer.num_cached_tokens for answer in answers),
        "output_tokens": sum(answer.num_tokens for answer in answers),
    }
    if not answers:
        return counts
    rates: dict[str, Any] = {
        "requests_per_s": round(len(answers) / seconds, 3),
        "output_tokens_per_s": round(counts["output_tokens"] / seconds, 1),
        "total_tokens_per_s": round(
            (counts["prompt_tokens"] + counts["output_tokens"]) / seconds, 1
        ),
    }
    if limits:
        good = sum(_keeps(answer, limits) for answer in answers)
        rates["goodput_requests_per_s"] = round(good / seconds, 3)
    times = {
        "ttft": [answer.ttft_s for answer in answers],
        "tpot": [answer.tpot_s for answer in answers],
        "itl": [gap for answer in answers for gap in answer.itl_s],
        "e2e": [answer.e2e_s for answer in answers],
    }
    return counts | rates | {f"{name}_ms": _spread(values) for name, values in times.items()}


def _spread(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    shares = {f"p{share * 100:g}": percentile(values, share) for share in PERCENTILES}
    mean = sum(values) / len(values)
    return {name: round(value * 1000, 2) for name, value in ({"mean": mean} | shares).items()}


def _keeps(answer: Answer, limits: Mapping[str, float]) -> bool:
    times = {"ttft": answer.ttft_s, "tpot": answer.tpot_s, "e2e": answer.e2e_s}
    return all(times[name] <= limit for name, limit in limits.items())
