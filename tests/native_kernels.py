"""The fixture that compiles the native kernels before the first test that computes with them.

Invariant: it takes its time in a fixture, since compiling takes longer than a test may.
"""

from __future__ import annotations

import pytest

from kernels.native import native_kernels


@pytest.fixture(scope="session", autouse=True)
def compiled_kernels() -> None:
    native_kernels()
