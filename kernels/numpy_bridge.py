"""From numpy to torch and to plain integers, with types: torch's own say too little for them.

Knows nothing else. Invariant: no copy where torch makes none.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch


def as_tensor(array: npt.NDArray[np.generic]) -> torch.Tensor:
    """Shares the array's memory."""
    untyped_torch: Any = torch
    return untyped_torch.from_numpy(array)


def as_ints(tensor: torch.Tensor) -> list[int]:
    """Of a tensor with one dimension."""
    untyped: Any = tensor
    return untyped.tolist()
