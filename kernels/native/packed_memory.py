"""Where packed weights lie: in large pieces, which the system can back with huge pages.

A step reads every weight once, so with pages of 4 KiB it waits for address translation more than
for memory, in a virtual machine above all. numpy asks Linux for huge pages in what it allocates
from 4 MiB on; a small weight alone would never get one. Knows no layout. Invariant: no two tensors
share a byte, and each starts on a cache line.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from kernels.numpy_bridge import as_tensor

PIECE_BYTES = 64 << 20  # takes no memory before it is written to
ALIGNMENT = 64


class PackedMemory:
    """A piece lives as long as a tensor in it does. Not for two threads at a time."""

    def __init__(self, piece_bytes: int = PIECE_BYTES) -> None:
        self._piece_bytes = piece_bytes
        self._rest = torch.empty(0, dtype=torch.uint8)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        num_bytes = math.prod(shape) * dtype.itemsize
        if num_bytes > self._rest.numel():
            self._rest = _aligned_bytes(max(num_bytes, self._piece_bytes))
        taken = self._rest[:num_bytes]
        self._rest = self._rest[-(-num_bytes // ALIGNMENT) * ALIGNMENT :]
        return taken.view(dtype).view(shape)

    def copy_of(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.empty(tuple(tensor.shape), tensor.dtype).copy_(tensor)


def _aligned_bytes(num_bytes: int) -> torch.Tensor:
    piece = as_tensor(np.empty(num_bytes + ALIGNMENT, dtype=np.uint8))
    return piece[-piece.data_ptr() % ALIGNMENT :][:num_bytes]
