"""The first thing a reader runs has to run, and to show what it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[3] / "examples" / "drive_the_core.py"


def test_it_shows_a_prefix_hit_a_preemption_and_a_return(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "c  new      positions 8..8 (samples, 8 found in the cache)" in done.stdout
    assert "preempted: its blocks are free" in done.stdout
    assert "b  resumed" in done.stdout
    for request_id in "abc":
        assert f"{request_id} ends (length)" in done.stdout
