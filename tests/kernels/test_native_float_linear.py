"""Our compiled products in float32: the right numbers, and a row's bits the same in every batch."""

from __future__ import annotations

import pytest
import torch

from kernels.native import NativeKernels
from tests.native_kernels import of_many_magnitudes as random

# Outputs and inputs: whole tiles, and what is left over of them.
SHAPES = [(64, 64), (960, 576), (17, 33), (1, 2), (100, 95)]


@pytest.mark.parametrize("shape", SHAPES)
def test_agrees_with_the_exact_product(native: NativeKernels, shape: tuple[int, int]) -> None:
    weight, bias, x = (
        random(*shape, seed=1),
        random(shape[0], seed=2),
        random(35, shape[1], seed=3),
    )
    exact = x.double() @ weight.double().T + bias.double()
    scale = x.double().abs() @ weight.double().abs().T + bias.double().abs()
    got = native.linear_float(x, native.pack_linear_float(weight), bias, shape[0])
    assert ((got.double() - exact).abs() <= scale * (shape[1] + 1) * 2.0**-24).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_do_not_depend_on_batch_or_threads(
    native: NativeKernels, shape: tuple[int, int]
) -> None:
    packed, x = (
        native.pack_linear_float(random(*shape, seed=4)),
        random(130, shape[1], seed=5),
    )
    native.set_num_threads(1)
    together = native.linear_float(x, packed, None, shape[0])
    native.set_num_threads(3)
    for first in (0, 1, 40):
        for count in (1, 2, 5, 6, 7, 16, 17, 90):
            alone = native.linear_float(x[first : first + count], packed, None, shape[0])
            assert torch.equal(alone, together[first : first + count])


def test_nothing_is_written_beside_the_result(native: NativeKernels) -> None:
    """Rows that lie behind each other in memory stay what they are, NaN included."""
    packed, x = (
        native.pack_linear_float(random(20, 40, seed=6)),
        random(3, 40, seed=7),
    )
    x[1] = torch.nan
    got = native.linear_float(x, packed, None, 20)
    assert got[1].isnan().all()
    assert not got[[0, 2]].isnan().any()
