"""The kernels compile for NVIDIA's GPUs on a machine without one, and fit into them."""

from __future__ import annotations

import pytest

from tests.kernels.compiled_kernels import NEEDS_TRITON, assert_fits, compiled

pytestmark = NEEDS_TRITON


# Qwen2's heads, seven to a group. tests/e2e/test_compiled_kernels.py compiles the others.
SOME = ("28/4x128", "merge_splits", "add_rms_norm", "sample_tokens", "copy_blocks")


@pytest.mark.slow
def test_they_fit() -> None:
    kernels = compiled(SOME)
    assert_fits(kernels)
    assert all(kernel["uses_tensor_cores"] for kernel in kernels if "x128" in kernel["name"])
    for part in SOME:
        assert any(part in kernel["name"] for kernel in kernels), part
