"""Norm, rotation, activation and cache writes against the reference, and row by row alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import kernels
from kernels import reference

DTYPES = [torch.float32, torch.bfloat16]
# Odd sizes leave an end that is not a whole vector of the CPU.
SIZES = [(1, 48), (7, 50), (33, 576), (130, 66)]


def random(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(size))
    return (3 * torch.randn(size, generator=generator)).to(dtype)


def assert_rows_stand_alone(op: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> None:
    together = op(x)
    for row in range(len(x)):
        assert torch.equal(op(x[row : row + 1])[0], together[row])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_rms_norm(size: tuple[int, int], dtype: torch.dtype) -> None:
    x, weight = random(*size, dtype=dtype), random(size[1], dtype=dtype)
    torch.testing.assert_close(
        kernels.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5)
    )
    assert_rows_stand_alone(lambda part: kernels.rms_norm(part, weight, 1e-5), x)


@pytest.mark.parametrize("is_wide", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_add_rms_norm(dtype: torch.dtype, is_wide: bool) -> None:
    x, residual = random(5, 64, dtype=dtype), random(5, 64, dtype=dtype).flip(1)
    residual = residual.float() if is_wide else residual
    weight = random(64, dtype=dtype)
    got = kernels.add_rms_norm(x, residual, weight, 1e-5)
    expected = reference.add_rms_norm(x, residual, weight, 1e-5)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_silu_and_mul(size: tuple[int, int], dtype: torch.dtype) -> None:
    x = random(*size, dtype=dtype)
    torch.testing.assert_close(kernels.silu_and_mul(x), reference.silu_and_mul(x))
    assert_rows_stand_alone(kernels.silu_and_mul, x)


def test_silu_far_out() -> None:
    """exp overflows there, and the result has to be 0, not NaN."""
    x = torch.tensor([[-1000.0, 1000.0, 2.0, 3.0]])
    assert kernels.silu_and_mul(x).tolist() == [[0.0, 3000.0]]


@pytest.mark.parametrize("dtype", DTYPES)
def test_rotary_embedding(dtype: torch.dtype) -> None:
    x = random(5, 3, 16, dtype=dtype)
    cos, sin = random(5, 8, dtype=dtype).cos(), random(5, 8, dtype=dtype).sin()
    doubled = torch.cat([cos, cos], dim=1).unsqueeze(1)
    signed = torch.cat([-sin, sin], dim=1).unsqueeze(1)
    got = kernels.rotary_embedding(x, doubled, signed)
    torch.testing.assert_close(got, reference.rotary_embedding(x, cos, sin))


def test_reshape_and_cache() -> None:
    key, value = random(4, 2, 8), random(4, 2, 8) + 1
    slots = torch.tensor([9, 2, 31, 0])
    got = torch.zeros(2, 8, 4, 2, 8)
    expected = torch.zeros(2, 8, 4, 2, 8)
    kernels.reshape_and_cache(key, value, got[0], got[1], slots)
    reference.reshape_and_cache(key, value, expected[0], expected[1], slots)
    assert torch.equal(got, expected)
    assert bool(expected.any())
