"""The native kernels are compiled before the first test: that takes longer than a test may."""

from __future__ import annotations

import pytest

from kernels.native import native_kernels


@pytest.fixture(scope="session", autouse=True)
def compiled_kernels() -> None:
    native_kernels()
