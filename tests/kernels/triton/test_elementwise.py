"""Norm, rotation, activation and cache writes as Triton kernels, against the reference."""

from __future__ import annotations

import pytest
import torch

from kernels import reference
from kernels.triton.reshape_and_cache import reshape_and_cache
from kernels.triton.rms_norm import add_rms_norm, rms_norm
from kernels.triton.rotary_embedding import rotary_embedding
from kernels.triton.silu_and_mul import silu_and_mul
from tests.kernels.triton_device import DEVICE, DTYPES, assert_agrees, noise, poisoned

# No size is a power of 2, so each has an end that is masked.
SIZES = [(1, 48), (7, 50), (3, 2100)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_rms_norm(size: tuple[int, int], dtype: torch.dtype) -> None:
    x, weight = noise(*size, dtype=dtype), noise(size[1], dtype=dtype)
    expected = reference.rms_norm(x, weight, 1e-5)
    assert_agrees(rms_norm(x, weight, 1e-5), expected)


@pytest.mark.parametrize("is_wide", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_add_rms_norm(size: tuple[int, int], dtype: torch.dtype, is_wide: bool) -> None:
    residual_dtype = torch.float32 if is_wide else dtype
    x, residual = noise(*size, dtype=dtype), noise(*size, dtype=residual_dtype, seed=1)
    weight = noise(size[1], dtype=dtype)
    normed, added = add_rms_norm(x, residual, weight, 1e-5)
    expected_normed, expected_added = reference.add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(added, expected_added)
    assert_agrees(normed, expected_normed)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_norm_has_the_weight_s_dtype(dtype: torch.dtype) -> None:
    x, weight = noise(3, 50), noise(50, dtype=dtype)
    got = rms_norm(x, weight, 1e-5)
    assert got.dtype == dtype
    assert_agrees(got, reference.rms_norm(x, weight, 1e-5))


def test_rows_of_a_norm_stand_alone() -> None:
    x, weight = noise(9, 100), noise(100)
    together = rms_norm(x, weight, 1e-5)
    for row in range(9):
        assert torch.equal(rms_norm(x[row : row + 1], weight, 1e-5)[0], together[row])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_heads", "head_dim"), [(3, 64), (17, 80), (4, 256)])
def test_rotary_embedding(num_heads: int, head_dim: int, dtype: torch.dtype) -> None:
    x = noise(5, num_heads + 2, head_dim, dtype=dtype)[:, 1:-1]
    angles = noise(5, head_dim // 2)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    doubled = torch.cat([cos, cos], dim=1).unsqueeze(1)
    signed = torch.cat([-sin, sin], dim=1).unsqueeze(1)
    expected = reference.rotary_embedding(x, cos, sin)
    assert_agrees(rotary_embedding(x, doubled, signed), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [(1, 6), (4, 2100)])
def test_silu_and_mul(size: tuple[int, int], dtype: torch.dtype) -> None:
    x = 3 * noise(*size, dtype=dtype)
    assert_agrees(silu_and_mul(x), reference.silu_and_mul(x))


def test_silu_far_out() -> None:
    """exp overflows there, and the result has to be 0, not NaN."""
    x = torch.tensor([[-1000.0, 1000.0, 2.0, 3.0]], device=DEVICE)
    assert silu_and_mul(x).tolist() == [[0.0, 3000.0]]


@pytest.mark.parametrize("dtype", DTYPES)
def test_reshape_and_cache(dtype: torch.dtype) -> None:
    """What fills a batch up has a negative slot; a slot that nobody names keeps what it had."""
    qkv = noise(5, 8, 24, dtype=dtype)
    key, value = qkv[:, 2:5], qkv[:, 5:]
    slots = torch.tensor([9, 2, -1, 31, 0], device=DEVICE)
    got = poisoned(2, 2, 16, 3, 24, dtype=dtype)
    expected = got.clone()
    reshape_and_cache(key, value, got[0], got[1], slots)
    reference.reshape_and_cache(key, value, expected[0], expected[1], slots)
    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
    assert int(got.isfinite().sum()) == 2 * 4 * 3 * 24


def test_a_slot_beyond_32_bits() -> None:
    """Only the pages that are written take memory."""
    key, value = noise(2, 1, 64, dtype=torch.float16), noise(2, 1, 64, dtype=torch.float16, seed=1)
    size, strides = (2**21 + 1, 16, 1, 64), (1024, 64, 64, 1)
    keys, values = (
        torch.empty_strided(size, strides, dtype=key.dtype, device=DEVICE) for _ in range(2)
    )
    reshape_and_cache(key, value, keys, values, torch.tensor([2**25 + 3, 5], device=DEVICE))
    for cache, expected in ((keys, key), (values, value)):
        assert torch.equal(cache[2**21, 3], expected[0])
        assert torch.equal(cache[0, 5], expected[1])
