"""docs/metrics.md is what the table of instruments says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from segue.instruments import INSTRUMENTS
from tests.source_tree import ROOT

PAGE = ROOT / "docs" / "metrics.md"


def test_the_page_is_current(tmp_path: Path) -> None:
    """Somebody writes an alert by it."""
    fresh = tmp_path / "metrics.md"
    command = [sys.executable, "-m", "scripts.write_metrics_page", str(fresh)]
    subprocess.run(command, cwd=ROOT, check=True)
    assert PAGE.read_text() == fresh.read_text(), "run `make docs`"


def test_the_page_has_each_instrument() -> None:
    text = PAGE.read_text()
    assert [row.name for row in INSTRUMENTS if f"`{row.page_name}`" not in text] == []
