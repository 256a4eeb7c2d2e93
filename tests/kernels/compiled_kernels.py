"""Compiles kernels ahead of time in a process of its own, and says whether they fit into a GPU.

Knows `kernels.triton.ahead_of_time` as a command, since kernels are interpreted in a test's own
process. Invariant: both targets are always among what it looks at.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

# Not pytest.importorskip: triton must not be imported here before the interpreter's tests do it.
NEEDS_TRITON = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton has no wheel for this machine"
)
ROOT = Path(__file__).resolve().parents[2]
# Per block of threads: A100's limit, H100's.
SHARED_LIMITS = {80: 163 * 1024, 90: 227 * 1024}
MAX_REGISTERS = 255


def compiled(names: Sequence[str]) -> list[dict[str, Any]]:
    environ = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [
        sys.executable,
        "-m",
        "kernels.triton.ahead_of_time",
        "--json",
        "--only",
        ",".join(names),
    ]
    shown = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    kernels: list[dict[str, Any]] = json.loads(shown.stdout)
    assert {kernel["target"] for kernel in kernels} == {80, 90}
    return kernels


def assert_fits(kernels: list[dict[str, Any]]) -> None:
    for kernel in kernels:
        assert kernel["shared_bytes"] <= SHARED_LIMITS[kernel["target"]], kernel
        assert kernel["registers"] <= MAX_REGISTERS, kernel
        assert kernel["spilled_bytes"] == 0, kernel
