"""The native kernels for tests: compiled before the first that computes with them, and as they were
after each that chose instructions or threads.

Invariant: compiling takes its time in a fixture, since it takes longer than a test may.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from kernels.native import NativeKernels, native_kernels
from kernels.native.library import AMX, AVX512_BF16, PORTABLE

NUM_THREADS = 3
LINEAR_KINDS = (PORTABLE, AVX512_BF16, AMX)


@pytest.fixture(scope="session", autouse=True)
def compiled_kernels() -> None:
    native_kernels()


@pytest.fixture
def native() -> Iterator[NativeKernels]:
    """With the best instructions, on three threads; a test may choose others."""
    kernels = native_kernels()
    if kernels is None:
        pytest.skip("there is no compiler here")
    kernels.set_num_threads(NUM_THREADS)
    yield kernels
    kernels.set_linear(kernels.linear_kind)
    kernels.set_num_threads(torch.get_num_threads())


@pytest.fixture(params=LINEAR_KINDS)
def linear_kind(request: pytest.FixtureRequest, native: NativeKernels) -> int:
    """Chosen for products; each that this CPU has."""
    if not native.set_linear(request.param):
        pytest.skip("this CPU has no such instructions")
    return request.param


def of_many_magnitudes(*size: int, seed: int) -> torch.Tensor:
    """float32, so that another order of summation shows."""
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.randint(-6, 7, size, generator=generator)
    return torch.randn(size, generator=generator) * 2.0**exponents
