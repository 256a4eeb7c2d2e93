"""The committed stubs in segue/v1 are what protos/ generates."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.source_tree import GENERATED, ROOT


def test_generated_stubs_are_current(tmp_path: Path) -> None:
    """Stubs from an older .proto would speak another protocol than the one that is documented."""
    subprocess.run(
        [ROOT / "scripts" / "generate_protos.sh", str(tmp_path)],
        check=True,
        env={"PYTHON": sys.executable, "PATH": "/usr/bin:/bin"},
    )
    fresh = {path.name: path.read_text() for path in (tmp_path / "segue" / "v1").iterdir()}
    committed = {
        path.name: path.read_text()
        for path in GENERATED.iterdir()
        if path.is_file() and path.name != "__init__.py"
    }
    assert fresh == committed, "run `make protos`"
