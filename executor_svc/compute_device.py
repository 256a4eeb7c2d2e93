"""Which device computes, and how much of its memory the KV cache may take.

Knows what this machine has, no model. Invariant: `auto` is a GPU where there is one that Triton
compiles for, and the CPU everywhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

import torch

from executor_svc.weights import ModelError
from kernels.gpu import is_interpreted

DEVICES = ("auto", "cpu", "cuda")


@dataclass(slots=True, frozen=True)
class ComputeDevice:
    """`is_gpu` with a CPU as its torch device: Triton's interpreter plays the GPU."""

    torch_device: torch.device
    is_gpu: bool

    def cache_bytes(self, utilization: float, kv_cache_bytes: int) -> int:
        """Of a GPU, what the model has left of `utilization`; of a CPU, what was asked for."""
        if self.torch_device.type != "cuda":
            return kv_cache_bytes
        free, total = torch.cuda.mem_get_info(self.torch_device)
        return max(0, int(free - (1.0 - utilization) * total))


def choose_device(name: str) -> ComputeDevice:
    """Raises ModelError with a readable line."""
    if name not in DEVICES:
        raise ModelError(f"device {name!r} is not one of {', '.join(DEVICES)}")
    has_gpu = torch.cuda.is_available()
    has_triton = find_spec("triton") is not None
    if name == "cpu" or (name == "auto" and not (has_gpu and has_triton) and not is_interpreted):
        return ComputeDevice(torch.device("cpu"), is_gpu=False)
    if not has_triton:
        raise ModelError("device cuda: triton is not installed")
    if is_interpreted:
        return ComputeDevice(torch.device("cpu"), is_gpu=True)
    if not has_gpu:
        raise ModelError("device cuda: torch finds no GPU here")
    return ComputeDevice(torch.device("cuda", torch.cuda.current_device()), is_gpu=True)
