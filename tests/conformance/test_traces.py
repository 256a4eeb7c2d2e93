"""Every recorded decision of the real schedulers, one test for each scenario."""

from __future__ import annotations

import gzip
import json
import re
from functools import partial
from pathlib import Path

import pytest

from tests.conformance.replay import DRIVERS, TRACES, replay
from tests.conformance.trace_v0 import V0Trace
from tests.conformance.trace_v1 import V1Trace

V1_TRACES = sorted((TRACES / "v1").glob("*.jsonl.gz"))
V0_TRACES = sorted((TRACES / "v0").glob("*.jsonl.gz"))
REPAIRED_V1 = ("priority_ties",)
REPAIRED_V0 = (
    "apc_chunked",
    "apc_evict",
    "apc_same",
    "apc_tight",
    "max_model_len",
    "mixed_chunked",
    "overlong",
    "recompute_overcommit",
    "swap_never",
)


def _scenario(path: Path) -> str:
    return f"{path.parent.name}/{path.name.removesuffix('.jsonl.gz')}"


@pytest.mark.parametrize("path", V1_TRACES + V0_TRACES, ids=_scenario)
def test_decides_what_vllm_decides(path: Path) -> None:
    verdict = replay(path)
    assert not verdict.mismatch, verdict.mismatch
    assert verdict.num_steps > 0


@pytest.mark.parametrize("path", [p for p in V1_TRACES if "priority" in p.name], ids=_scenario)
def test_the_repair_of_what_vllm_does_wrongly_changes_nothing_else(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H20 is rare, and one trace is of ties (docs/decisions/v1-repairs.md)."""
    monkeypatch.setitem(DRIVERS, "vllm-v1", partial(V1Trace, is_strict=False))
    verdict = replay(path)
    is_repaired = _scenario(path).removeprefix("v1/") in REPAIRED_V1
    assert bool(verdict.mismatch) == is_repaired, verdict.mismatch


@pytest.mark.parametrize("path", V0_TRACES, ids=_scenario)
def test_the_repairs_of_v0_change_a_decision_only_where_v0_went_wrong(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stale hits, hashes of what is not computed, leaked CPU blocks, a watermark that ends requests
    half-way, one token too many: nowhere else."""
    monkeypatch.setitem(DRIVERS, "vllm-v0", partial(V0Trace, is_strict=False))
    verdict = replay(path)
    is_repaired = _scenario(path).removeprefix("v0/") in REPAIRED_V0
    assert bool(verdict.mismatch) == is_repaired, verdict.mismatch


def test_all_traces_are_there() -> None:
    """A trace that is lost would otherwise pass."""
    assert (len(V1_TRACES), len(V0_TRACES)) == (84, 42)


def test_a_mismatch_says_where_and_shows_both_decisions(tmp_path: Path) -> None:
    """A replay that cannot fail proves nothing."""
    with gzip.open(TRACES / "v1" / "tight_cache.jsonl.gz", "rt") as lines:
        events = [json.loads(line) for line in lines]
    changed = next(e for e in events if e["e"] == "schedule" and e["step"] == 40)
    changed["expect"]["free_crc"] += 1
    row = changed["expect"]["running"][1]
    ours, row["n"] = row["n"], row["n"] + 1
    path = tmp_path / "changed.jsonl.gz"
    with gzip.open(path, "wt") as out:
        out.writelines(json.dumps(event) + "\n" for event in events)
    verdict = replay(path)
    assert verdict.num_steps == 40
    assert "schedule 40 differs" in verdict.mismatch
    assert re.search(r"\* free_crc +null +\| 1\n", verdict.mismatch)
    assert re.search(rf"\* running\[1\]\.n +{ours} +\| {ours + 1}\n", verdict.mismatch)
    assert [step for step in range(41) if f"schedule {step}:" in verdict.mismatch] == [37, 38, 39]
