"""Where the Triton kernels run in tests: on a GPU if there is one, else under Triton's interpreter.

tests/kernels/triton/conftest.py imports it before any kernel. Triton reads TRITON_INTERPRET when a
kernel is defined and when one runs, so it is set then and at no other time: what other tests do,
and processes that they start, do not see it. Invariant: where triton has no wheel, whoever imports
this is skipped, with that as its reason.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from typing import Any

import pytest
import torch

from tests.kernels.interpreter_repairs import repair_bfloat16

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCES = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}


def _import_kernels() -> None:
    pytest.importorskip("triton", reason="triton has no wheel for this machine")
    import kernels.triton

    for module in pkgutil.iter_modules(kernels.triton.__path__, "kernels.triton."):
        importlib.import_module(module.name)


def _import_interpreted() -> None:
    # Its own functions are defined then, for the interpreter or for good: it can not be undone.
    assert "triton" not in sys.modules, "a test module has imported triton before the interpreter"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        _import_kernels()
    repair_bfloat16()


if DEVICE.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1":
    _import_kernels()
else:
    _import_interpreted()


def noise(*size: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(size))
    return torch.randn(size, generator=generator).to(dtype).to(DEVICE)


def poisoned(*size: int, dtype: torch.dtype) -> torch.Tensor:
    """Memory that nobody has written: whoever reads it shows it."""
    return torch.full(size, float("nan"), dtype=dtype, device=DEVICE)


def assert_agrees(got: Any, expected: torch.Tensor) -> None:
    """Within what two orders of summation may differ by, in the dtype of the result."""
    tolerance = TOLERANCES[expected.dtype]
    torch.testing.assert_close(got.cpu(), expected.cpu(), rtol=tolerance, atol=tolerance)
