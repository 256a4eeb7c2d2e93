"""Products against the plain one, and row by row against themselves in other batches."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from kernels.triton.invariant_linear import invariant_linear
from tests.kernels.triton_device import DTYPES, assert_agrees, noise


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_rows", "outs", "inner"), [(1, 5, 7), (70, 130, 100)])
def test_agrees(num_rows: int, outs: int, inner: int, dtype: torch.dtype) -> None:
    x = noise(num_rows, inner + 8, dtype=dtype)[:, 8:]
    weight, bias = noise(outs, inner, dtype=dtype) / inner**0.5, noise(outs, dtype=dtype)
    expected = F.linear(x.double(), weight.double(), bias.double()).to(dtype)
    assert_agrees(invariant_linear(x, weight, bias), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_do_not_depend_on_the_batch(dtype: torch.dtype) -> None:
    x, weight = noise(150, 80, dtype=dtype), noise(40, 80, dtype=dtype)
    together = invariant_linear(x, weight)
    for start, count in [(0, 1), (149, 1), (60, 9), (3, 65)]:
        rows = slice(start, start + count)
        assert torch.equal(invariant_linear(x[rows], weight), together[rows])
