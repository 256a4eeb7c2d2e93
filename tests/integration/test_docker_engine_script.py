"""scripts/docker_engine.sh where it can not help: it says why, and has changed nothing."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.compose.engine import NOT_POSSIBLE_HERE, NoEngine, start_own
from tests.source_tree import ROOT


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Of somebody who is not root."""
    (tmp_path / "bin").mkdir()
    identity = tmp_path / "bin" / "id"
    identity.write_text("#!/bin/sh\necho 1000\n")
    identity.chmod(0o755)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "SEGUE_DOCKER_ROOT": str(tmp_path / "docker")}


def test_only_root_can_start_an_engine(environ: dict[str, str], tmp_path: Path) -> None:
    command = [ROOT / "scripts" / "docker_engine.sh", "up"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == NOT_POSSIBLE_HERE
    assert done.stderr == "only root can start a Docker engine\n"
    assert not (tmp_path / "docker").exists()


def test_the_tests_are_skipped_with_that_reason(environ: dict[str, str]) -> None:
    with pytest.raises(NoEngine, match="none can be started here: only root can start"):
        start_own(environ)
