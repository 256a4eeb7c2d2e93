"""Our compiled products: the right numbers, and a row's bits the same in every batch."""

from __future__ import annotations

import pytest
import torch

from kernels.native import NativeKernels
from tests.native_kernels import of_many_magnitudes

pytestmark = pytest.mark.usefixtures("linear_kind")
# Outputs and inputs: whole tiles, and what is left over of them in each direction.
SHAPES = [(64, 64), (960, 576), (17, 33), (48, 1536), (1, 2), (100, 96)]


def random(*size: int, seed: int) -> torch.Tensor:
    return of_many_magnitudes(*size, seed=seed).bfloat16()


@pytest.mark.parametrize("shape", SHAPES)
def test_agrees_with_the_exact_product(native: NativeKernels, shape: tuple[int, int]) -> None:
    weight, bias, x = random(*shape, seed=1), random(shape[0], seed=2), random(35, shape[1], seed=3)
    exact = x.double() @ weight.double().T + bias.double()
    # What rounding can do: one bfloat16 at the end, and a float at each of the sums before it.
    scale = x.double().abs() @ weight.double().abs().T + bias.double().abs()
    limit = exact.abs() * 2.0**-8 + scale * shape[1] * 2.0**-23
    got = native.linear(x, native.pack_linear(weight), bias, shape[0])
    assert ((got.double() - exact).abs() <= limit).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_do_not_depend_on_batch_or_threads(
    native: NativeKernels, shape: tuple[int, int]
) -> None:
    packed, x = native.pack_linear(random(*shape, seed=4)), random(130, shape[1], seed=5)
    native.set_num_threads(1)
    together = native.linear(x, packed, None, shape[0])
    native.set_num_threads(3)
    for first in (0, 1, 40):
        for count in (1, 2, 5, 6, 16, 17, 31, 32, 33, 90):
            alone = native.linear(x[first : first + count], packed, None, shape[0])
            assert torch.equal(alone, together[first : first + count])


def test_nothing_is_written_beside_the_result(native: NativeKernels) -> None:
    """Rows that lie behind each other in memory stay what they are, NaN included."""
    packed, x = native.pack_linear(random(20, 40, seed=6)), random(3, 40, seed=7)
    x[1] = torch.nan
    got = native.linear(x, packed, None, 20)
    assert got[1].isnan().all()
    assert not got[[0, 2]].isnan().any()


def test_ops_in_quick_succession_take_each_part_once(native: NativeKernels) -> None:
    """More threads than cores, so that workers come late, into the next op or the one after."""
    shapes = [(64, 64), (960, 576), (48, 1536)]
    weights = [random(*shape, seed=6) for shape in shapes]
    packed = [native.pack_linear(weight) for weight in weights]
    inputs = [random(3, shape[1], seed=7) for shape in shapes]
    native.set_num_threads(1)
    ops = list(zip(inputs, packed, shapes, strict=True))
    expected = [native.linear(x, one, None, shape[0]) for x, one, shape in ops]
    native.set_num_threads(5)
    for number in range(900):
        x, one, shape = ops[number % 3]
        assert torch.equal(native.linear(x, one, None, shape[0]), expected[number % 3])
