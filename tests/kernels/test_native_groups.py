"""Products with weights in groups: the bits of a product with the bfloat16 that they stand for."""

from __future__ import annotations

import pytest
import torch

from kernels.grouped_weight import METHODS, GroupedWeight, group_weight
from kernels.native import NativeKernels, NativeProduct
from tests.native_kernels import LINEAR_KINDS, of_many_magnitudes

# Outputs and inputs: whole tiles and groups, what is left over of them, several chunks of inputs.
SHAPES = [(64, 64), (960, 576), (17, 33), (48, 1536), (1, 2), (100, 96)]


def product(
    native: NativeKernels, x: torch.Tensor, weight: GroupedWeight, bias: torch.Tensor | None = None
) -> torch.Tensor:
    return NativeProduct.of(native, weight, bias)(x)


def random(*size: int, seed: int) -> torch.Tensor:
    return of_many_magnitudes(*size, seed=seed).bfloat16()


@pytest.mark.usefixtures("linear_kind")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", SHAPES)
def test_bits_of_the_weight_that_it_stands_for(
    native: NativeKernels, shape: tuple[int, int], method: str
) -> None:
    """For few rows and for many, which unpack the weights in other portions."""
    weight, bias = group_weight(random(*shape, seed=1), method), random(shape[0], seed=2)
    packed, x = native.pack_linear(weight.dequantized()), random(40, shape[1], seed=3)
    for count in (1, 5, 32, 33, 40):
        expected = native.linear(x[:count], packed, bias, shape[0])
        assert torch.equal(product(native, x[:count], weight, bias), expected)


@pytest.mark.usefixtures("linear_kind")
@pytest.mark.parametrize("method", METHODS)
def test_rows_do_not_depend_on_batch_or_threads(native: NativeKernels, method: str) -> None:
    weight, x = group_weight(random(100, 1536, seed=4), method), random(130, 1536, seed=5)
    native.set_num_threads(1)
    together = product(native, x, weight)
    native.set_num_threads(3)
    for first in (0, 1, 40):
        for count in (1, 2, 5, 6, 16, 17, 31, 32, 33, 90):
            alone = product(native, x[first : first + count], weight)
            assert torch.equal(alone, together[first : first + count])


@pytest.mark.parametrize("method", METHODS)
def test_all_instructions_unpack_alike(native: NativeKernels, method: str) -> None:
    """So that executors on different CPUs hold the same model."""
    weight = group_weight(random(40, 64, seed=6) * 2.0**-8, method)
    unit = torch.eye(64, dtype=torch.bfloat16)  # picks each weight, exactly
    for kind in LINEAR_KINDS:
        if native.set_linear(kind):
            got = product(native, unit, weight)
            assert torch.equal(got.T, weight.dequantized())
