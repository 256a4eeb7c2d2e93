"""Every variant of every kernel compiles and fits; here, since it takes a minute of a core."""

from __future__ import annotations

import pytest

from tests.kernels.compiled_kernels import NEEDS_TRITON, assert_fits, compiled

pytestmark = NEEDS_TRITON

OTHERS = ("rms", "rotary", "silu", "cache", "merge", "tok", "pen", "verify", "copy", "linear")


@pytest.mark.parametrize("shape", ["32/8x128", "16/8x256", "9/3x64", "32/32x80"])
@pytest.mark.parametrize("kernel", ["paged_attention mixed", "paged_attention decode", "split_kv"])
def test_attention(kernel: str, shape: str) -> None:
    assert_fits(compiled([f"{kernel} {shape}"]))


def test_all_others() -> None:
    assert_fits(compiled(OTHERS))
