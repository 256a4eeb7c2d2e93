"""`python -m executor_svc` on a machine of a scheduler, which has no torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.source_tree import ROOT

# Python runs this at its start; None there is how it notes that a module can not be imported.
WITHOUT_TORCH = 'import sys\nsys.modules["torch"] = None\n'


def run_executor(tmp_path: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_TORCH)
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "executor_svc", "--model", str(tmp_path), *flags]
    return subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )


@pytest.mark.timeout(60)
def test_it_says_in_one_line_what_to_install(tmp_path: Path) -> None:
    done = run_executor(tmp_path)
    assert done.returncode == 1
    assert done.stderr == (
        "executor_svc: error: no executor can run here, torch is not installed: "
        "pip install 'segue[executor]'\n"
    )


@pytest.mark.timeout(60)
def test_its_flags_are_told_all_the_same(tmp_path: Path) -> None:
    done = run_executor(tmp_path, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "--gpu-memory-utilization" in done.stdout


@pytest.mark.timeout(60)
def test_a_wrong_flag_is_named_first(tmp_path: Path) -> None:
    done = run_executor(tmp_path, "--num-bloks", "3")
    assert done.returncode == 2
    assert "--num-bloks" in done.stderr
