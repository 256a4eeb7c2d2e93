"""Says which tensors Triton's kernels take, loads these when they are first needed, and keeps the
one setting that all of them share.

Knows no op. Invariant: triton is imported only where such a tensor has come: on a GPU, or on a CPU
where TRITON_INTERPRET=1 asks for the interpreter.
"""

from __future__ import annotations

import importlib
import os
from functools import lru_cache
from typing import Any

import torch

is_interpreted = os.environ.get("TRITON_INTERPRET") == "1"
_settings = {"is_batch_invariant": False}


def on_gpu(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda or is_interpreted


def set_batch_invariant(is_batch_invariant: bool) -> None:
    """Whether a row has the same bits in any batch, on a GPU; before a model is loaded."""
    _settings["is_batch_invariant"] = is_batch_invariant


def is_batch_invariant() -> bool:
    return _settings["is_batch_invariant"]


@lru_cache(maxsize=1)
def triton_ops() -> Any:
    """`kernels.triton.ops`."""
    return importlib.import_module("kernels.triton.ops")
