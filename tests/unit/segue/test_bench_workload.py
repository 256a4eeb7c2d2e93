"""Loads for `segue bench`: traces keep their times, lengths and shared prefixes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from segue.bench.figures import BadLimit, figures, parse_limits, percentile
from segue.bench.load import LoadResult
from segue.bench.openai_stream import Answer
from segue.bench.workload import (
    PromptSource,
    TraceScale,
    WorkloadError,
    random_requests,
    read_trace,
    with_poisson_arrivals,
)

SOURCE = PromptSource(seed=3)


def write_gz(path: Path, text: str) -> Path:
    with gzip.open(path, "wt") as file:
        file.write(text)
    return path


def test_mooncake_shares_what_was_shared(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 0, "input_length": 1000, "output_length": 50, "hash_ids": [1, 2]},
        {"timestamp": 2500, "input_length": 1100, "output_length": 9, "hash_ids": [1, 2, 3]},
        {"timestamp": 3000, "input_length": 600, "output_length": 1, "hash_ids": [4, 2]},
    ]
    path = write_gz(tmp_path / "t.jsonl.gz", "\n".join(map(json.dumps, rows)))
    first, second, third = read_trace(path, 10, TraceScale(length=0.25, time=0.5), SOURCE)
    assert [len(one.prompt) for one in (first, second, third)] == [250, 275, 150]
    assert first.prompt == second.prompt[:250]
    assert first.prompt[:128] != third.prompt[:128]
    assert first.prompt[128:150] == third.prompt[128:150]
    assert [one.arrival_s for one in (first, second, third)] == [0, 1.25, 1.5]
    assert [one.max_tokens for one in (first, second, third)] == [12, 2, 1]


def test_azure_keeps_times_and_lengths(tmp_path: Path) -> None:
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n"
        "2023-11-16 18:15:50.9951690,396,109\n"
    )
    path = write_gz(tmp_path / "t.csv.gz", text)
    first, second = read_trace(path, 10, TraceScale(max_prompt_tokens=380), SOURCE)
    assert (len(first.prompt), len(second.prompt)) == (374, 380)
    assert second.arrival_s == pytest.approx(4.314579)
    assert second.max_tokens == 109
    assert len(read_trace(path, 1, TraceScale(), SOURCE)) == 1


@pytest.mark.parametrize(
    ("name", "text"), [("t.csv", "a,b\n1,2\n"), ("t.jsonl", "{}"), ("t.txt", ""), ("t.csv.gz", "x")]
)
def test_a_file_that_is_no_trace_is_one_line(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(WorkloadError, match=rf"{name}: .+"):
        read_trace(tmp_path / name, 10, TraceScale(), SOURCE)


def test_arrivals_come_at_the_rate_and_again_the_same() -> None:
    requests = random_requests(2000, 3, 1, SOURCE)
    arriving = with_poisson_arrivals(requests, 20.0, seed=5)
    assert arriving == with_poisson_arrivals(requests, 20.0, seed=5)
    assert arriving[-1].arrival_s == pytest.approx(100.0, rel=0.1)
    assert len({one.prompt for one in arriving}) == 2000


def test_figures_follow_the_definitions() -> None:
    answers = [
        Answer(0.0, 0.1, 0.5, [0.1] * 4, 10, 0, 5),
        Answer(0.0, 0.3, 0.7, [0.1] * 4, 10, 8, 5),
    ]
    found = figures(LoadResult(2.0, answers, ["refused"]), parse_limits(["ttft:200", "tpot:150"]))
    assert (found["requests"], found["failed"], found["cached_tokens"]) == (2, 1, 8)
    assert found["output_tokens_per_s"] == 5.0
    assert found["goodput_requests_per_s"] == 0.5
    assert found["ttft_ms"]["p99"] == 300.0
    assert found["tpot_ms"]["mean"] == 100.0
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0


@pytest.mark.parametrize("text", ["ttft", "ttft:x", "itl:5", "e2e:-1"])
def test_a_limit_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BadLimit, match=text):
        parse_limits([text])
