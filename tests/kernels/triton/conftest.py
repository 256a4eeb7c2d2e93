"""For all tests of Triton kernels: the interpreter where there is no GPU, and poisoned memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.kernels.triton_device import DEVICE


@pytest.fixture(autouse=True)
def interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE.type == "cpu":
        monkeypatch.setenv("TRITON_INTERPRET", "1")


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a wrapper allocates for its results is NaN, so an element left out is noticed."""
    allocate: Any = torch.empty

    def full_of_nan(*arguments: Any, **options: Any) -> torch.Tensor:
        fresh = allocate(*arguments, **options)
        return fresh.fill_(float("nan") if fresh.is_floating_point() else -77)

    def like(tensor: torch.Tensor) -> torch.Tensor:
        return full_of_nan(tensor.shape, dtype=tensor.dtype, device=tensor.device)

    monkeypatch.setattr(torch, "empty", full_of_nan)
    monkeypatch.setattr(torch, "empty_like", like)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
