"""All that a step needs on the device, packed into one buffer and copied there at once.

Knows arrays, no plan. Invariant: one copy for each step; an array of the same place and size lies
at the same address each time, so that a recorded graph finds it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

Arrays = dict[str, np.ndarray[Any, np.dtype[Any]]]
ALIGNMENT = 16  # what Triton's kernels are compiled for
# The host may write the next step while the last one is still copied.
NUM_HOST_BUFFERS = 2


class StepBuffer:
    """Grows to twice of what it has to hold; what `upload` gives is good until the next one."""

    def __init__(self, device: torch.device, num_bytes: int = 1 << 16) -> None:
        self._device = device
        self._turn = 0
        self.num_bytes = 0
        self._allocate(num_bytes)

    def upload(self, arrays: Arrays) -> dict[str, torch.Tensor]:
        """The same arrays on the device, in the order given."""
        ends = np.cumsum([_aligned(array.nbytes) for array in arrays.values()])
        num_bytes = int(ends[-1])
        if num_bytes > self.num_bytes:
            self._allocate(2 * num_bytes)
        self._turn = (self._turn + 1) % NUM_HOST_BUFFERS
        if self._copied:
            self._copied[self._turn].synchronize()  # two steps ago: it has long been copied
        host = self._hosts[self._turn]
        packed = host.numpy()
        for array, end in zip(arrays.values(), ends, strict=True):
            start = int(end) - _aligned(array.nbytes)
            packed[start : start + array.nbytes] = (
                np.ascontiguousarray(array).view(np.uint8).ravel()
            )
        self._on_device[:num_bytes].copy_(host[:num_bytes], non_blocking=True)
        if self._copied:
            self._copied[self._turn].record()
        tensors: dict[str, torch.Tensor] = {}
        for (name, array), end in zip(arrays.items(), ends, strict=True):
            start = int(end) - _aligned(array.nbytes)
            part = self._on_device[start : start + array.nbytes]
            tensors[name] = part.view(_torch_dtype(array.dtype)).view(array.shape)
        return tensors

    def _allocate(self, num_bytes: int) -> None:
        is_cuda = self._device.type == "cuda"
        self.num_bytes = num_bytes
        self._hosts = [
            torch.zeros(num_bytes, dtype=torch.uint8, pin_memory=is_cuda)
            for _ in range(NUM_HOST_BUFFERS)
        ]
        self._on_device = torch.zeros(num_bytes, dtype=torch.uint8, device=self._device)
        self._copied: list[Any] = [torch.cuda.Event() for _ in self._hosts] if is_cuda else []


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def _torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    return torch.from_numpy(np.zeros(0, dtype)).dtype
