"""Copies of blocks, of all layers at once, against the reference."""

from __future__ import annotations

import pytest
import torch

from kernels import reference
from kernels.triton.block_copy import copy_blocks
from tests.kernels.triton_device import DEVICE, DTYPES, noise, poisoned


def ids(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.int32])
def test_into_another_cache(dtype: torch.dtype) -> None:
    source = noise(3, 5, 16, 2, 36).mul(100).to(dtype)
    target = torch.zeros(3, 7, 16, 2, 36, dtype=dtype, device=DEVICE)
    expected = target.clone()
    copy_blocks(source, target, ids(4, 0, 2), ids(1, 6, 0))
    reference.copy_blocks(source, expected, ids(4, 0, 2), ids(1, 6, 0))
    assert torch.equal(target, expected)
    assert bool(expected.any())


def test_within_a_cache() -> None:
    """Bits are moved: a block of NaN arrives as it was."""
    cache = noise(2, 6, 16, 1, 8, dtype=torch.bfloat16)
    cache[:, 3] = float("nan")
    expected = cache.clone()
    copy_blocks(cache, cache, ids(3, 1), ids(0, 5))
    reference.copy_blocks(expected, expected, ids(3, 1), ids(0, 5))
    torch.testing.assert_close(cache, expected, rtol=0, atol=0, equal_nan=True)


def test_keys_and_values_are_layers() -> None:
    """A cache [num_layers, 2, num_blocks, …] is seen with both of its first dimensions in one."""
    cache = poisoned(2, 2, 4, 16, 1, 8, dtype=torch.float32)
    cache[:, :, 1] = noise(2, 2, 16, 1, 8)
    copy_blocks(cache.flatten(0, 1), cache.flatten(0, 1), ids(1), ids(2))
    assert torch.equal(cache[:, :, 2], cache[:, :, 1])


@pytest.mark.parametrize(("num_layers", "num_blocks"), [(1, 2**21 + 2), (3, 2**20 + 2)])
def test_offsets_beyond_32_bits(num_layers: int, num_blocks: int) -> None:
    """A block, or a layer, behind 2**31 words; only the pages that are written take memory."""
    block_words = 1024
    size, strides = (
        (num_layers, num_blocks, block_words),
        (num_blocks * block_words, block_words, 1),
    )
    cache = torch.empty_strided(size, strides, dtype=torch.int32, device=DEVICE)
    expected = torch.arange(num_layers * block_words, dtype=torch.int32, device=DEVICE)
    expected = expected.view(num_layers, block_words)
    cache[:, num_blocks - 1] = expected
    copy_blocks(cache, cache, ids(num_blocks - 1), ids(num_blocks - 2))
    assert torch.equal(cache[:, num_blocks - 2], expected)
