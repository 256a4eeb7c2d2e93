"""`scripts/gpu_check.py --smoke`: every part of what a GPU is to be checked with runs on a CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton has no wheel for this machine")

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(400)
def test_smoke(tmp_path: Path) -> None:
    command = [sys.executable, "scripts/gpu_check.py", "--smoke", "--out", str(tmp_path)]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=390)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    report = json.loads((tmp_path / "gpu_check.json").read_text())
    assert report["is_smoke"]
    assert report["failures"] == {}
    assert all(row["ok"] for row in report["checks"])
    assert [row["streams"] for row in report["serving"]] == [1, 2]
    assert "no time below means a thing" in (tmp_path / "gpu_check.md").read_text()
