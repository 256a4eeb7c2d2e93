"""Groups of weights are llama.cpp's: near to any weight, and the very values of a GGUF file's."""

from __future__ import annotations

import gguf
import pytest
import torch
from gguf.quants import dequantize, quantize

from kernels import RowExactLinear
from kernels import row_exact_linear as module
from kernels.grouped_weight import METHODS, group_weight

GGUF_TYPES = {
    "int8": gguf.GGMLQuantizationType.Q8_0,
    "q4_1": gguf.GGMLQuantizationType.Q4_1,
}
# Half a step of the grid, of the largest magnitude in a group; and bfloat16's rounding.
ERRORS = {"int8": 0.5 / 127, "q4_1": 0.5 * 2 / 15}


def random(rows: int, columns: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return (torch.randn(rows, columns, generator=generator) * 0.05).bfloat16()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("columns", [32, 576, 33, 2])
def test_each_weight_is_within_half_a_step(method: str, columns: int) -> None:
    weight = random(20, columns)
    got = group_weight(weight, method).dequantized()
    for group, near in zip(weight.float().split(32, 1), got.float().split(32, 1), strict=True):
        limit = group.abs().amax(1, keepdim=True) * (ERRORS[method] + 2.0**-8)
        assert ((group - near).abs() <= limit).all()


@pytest.mark.parametrize("method", METHODS)
def test_a_gguf_file_s_groups_come_back(method: str) -> None:
    """The demo model was quantised from bfloat16: grouping what it became loses nothing more."""
    kind = GGUF_TYPES[method]
    raw = quantize(random(200, 576).float().numpy(), kind)
    weight = torch.from_numpy(dequantize(raw, kind)).bfloat16()
    assert torch.equal(group_weight(weight, method).dequantized(), weight)


@pytest.mark.parametrize("method", METHODS)
def test_weights_that_are_all_alike(method: str) -> None:
    weight = torch.full((3, 64), 0.5, dtype=torch.bfloat16)
    weight[1] = 0
    assert torch.equal(group_weight(weight, method).dequantized(), weight)


@pytest.mark.parametrize("method", METHODS)
def test_without_a_compiler_it_is_the_same_weight(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "native_kernels", lambda: None)
    weight = group_weight(random(48, 80), method)
    x = random(5, 80)
    got = RowExactLinear(weight)(x)
    expected = x.float() @ weight.dequantized().float().T
    torch.testing.assert_close(got.float(), expected, rtol=2.0**-7, atol=1e-3)
