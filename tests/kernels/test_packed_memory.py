"""Where packed weights lie."""

from __future__ import annotations

import itertools

import torch

from kernels.native.packed_memory import ALIGNMENT, PackedMemory

SHAPES = [(3, 5), (1,), (100,), (7, 9), (0, 4), (64,), (1000,), (2, 2)]


def bytes_of(tensor: torch.Tensor) -> range:
    return range(tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.element_size())


def test_tensors_start_on_cache_lines_and_share_nothing() -> None:
    """Of a small piece, which they fill to its end, and one that is larger than a piece."""
    memory = PackedMemory(piece_bytes=512)
    tensors = [memory.empty(s, d) for s in SHAPES for d in (torch.bfloat16, torch.float32)]
    assert all(one.data_ptr() % ALIGNMENT == 0 for one in tensors if one.numel())
    for one, other in itertools.combinations([bytes_of(t) for t in tensors], 2):
        assert one.stop <= other.start or other.stop <= one.start
    for value, one in enumerate(tensors):
        one.fill_(value)
    assert all((one == value).all() for value, one in enumerate(tensors))


def test_a_copy_is_equal_and_apart() -> None:
    original = torch.arange(6, dtype=torch.uint8).view(2, 3)
    copy = PackedMemory().copy_of(original)
    original.zero_()
    assert copy.tolist() == [[0, 1, 2], [3, 4, 5]]
