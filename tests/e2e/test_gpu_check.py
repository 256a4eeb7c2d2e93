"""`scripts/gpu_check.py --smoke`: every part of what a GPU is to be checked with runs on a CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton has no wheel for this machine")

ROOT = Path(__file__).resolve().parents[2]
# As `kernels.triton.ops` has them; both kernels of attention are cases of one.
KERNELS = {"attention", "rms_norm", "add_rms_norm", "rotary_embedding", "silu_and_mul"}
KERNELS |= {"reshape_and_cache", "copy_blocks", "invariant_linear"}
KERNELS |= {"sample_tokens", "apply_penalties", "verify_drafts"}


@pytest.mark.timeout(400)
def test_smoke(tmp_path: Path) -> None:
    command = [sys.executable, "scripts/gpu_check.py", "--smoke", "--out", str(tmp_path)]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=390)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    report = json.loads((tmp_path / "gpu_check.json").read_text())
    assert report["is_smoke"]
    assert report["failures"] == {}
    assert all(row["ok"] for row in report["checks"])
    assert {row["kernel"].split()[0] for row in report["checks"]} == KERNELS
    times = {row["kernel"].split()[0] for row in report["kernels"]}
    assert times == KERNELS - {"attention", "verify_drafts"} | {"decode", "prefill"}
    attention = [row for row in report["kernels"] if row["kernel"].startswith(("dec", "pre"))]
    assert all(row["torch SDPA us"] > 0 and row["torch flex us"] > 0 for row in attention)
    assert [row["streams"] for row in report["serving"]] == [1, 2]
    assert all(row["executor host ms per step"] > 0 for row in report["serving"])
    assert "no time below means a thing" in (tmp_path / "gpu_check.md").read_text()


def test_what_there_is_when_time_is_up(tmp_path: Path) -> None:
    """A part that hangs is ended, and what was before it is kept."""
    command = [sys.executable, "scripts/gpu_check.py", "--smoke", "--out", str(tmp_path)]
    command += ["--seconds", "0.001"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert shown.returncode == 1, shown.stderr
    report = json.loads((tmp_path / "gpu_check.json").read_text())
    assert report["failures"]["checks"] == "had not ended in time"
    assert report["machine"]["torch"] in shown.stdout


def test_a_place_that_is_no_directory(tmp_path: Path) -> None:
    """Found out before anything is measured."""
    (tmp_path / "file").touch()
    command = [sys.executable, "scripts/gpu_check.py", "--smoke", "--out", str(tmp_path / "file")]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert shown.returncode == 2
    assert shown.stdout.startswith("gpu_check: --out ")
    assert shown.stderr == ""
