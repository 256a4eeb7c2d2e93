"""The trace's own hit rate, worked out by hand."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from segue.bench.workload import BenchRequest
from tests.bench.bench_prefix import TRACE, trace_hit_rate


def test_full_blocks_of_a_prefix_count_and_never_the_last_token(tmp_path: Path) -> None:
    """48 tokens that were there whole have two blocks of hits: one token has to be computed."""
    path = tmp_path / "trace.jsonl.gz"
    rows = [[1, 2, 3], [1, 2, 3], [1, 9, 3], [7]]
    lines = "".join(json.dumps({"hash_ids": hash_ids}) + "\n" for hash_ids in rows)
    path.write_bytes(gzip.compress(lines.encode()))
    requests = [BenchRequest((0,) * 48, 1) for _ in rows]
    assert trace_hit_rate(path, 4, requests) == pytest.approx((0 + 32 + 16 + 0) / (4 * 48))


def test_the_excerpt_is_of_long_conversations() -> None:
    with gzip.open(TRACE, "rt") as file:
        rows = [json.loads(line) for line in file]
    assert len(rows) == 100
    assert rows[0]["timestamp"] == 0
    assert [row["timestamp"] for row in rows] == sorted(row["timestamp"] for row in rows)
