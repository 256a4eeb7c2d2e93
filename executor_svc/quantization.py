"""Which form the weights of a model's products are held in: `--quantization`.

Knows the choices and where each applies, no file and no kernel. Invariant: norms, embeddings and
what chooses experts stay what they are; the vocabulary's product, which decides between near
tokens, has 8 bits in either form, as it has in llama.cpp's files.
"""

from __future__ import annotations

import torch

from executor_svc.weights import ModelError
from kernels.grouped_weight import INT8, METHODS, GroupedWeight, group_weight
from segue.model_files.model_directory import UNQUANTIZED

NONE = UNQUANTIZED
QUANTIZATIONS = (NONE, *METHODS)


def check_quantization(quantization: str, dtype: torch.dtype, *, is_gpu: bool) -> None:
    """Raises ModelError with a readable line where it can not be had."""
    if quantization not in QUANTIZATIONS:
        known = ", ".join(QUANTIZATIONS)
        raise ModelError(f"--quantization: {quantization!r} is not one of {known}")
    if quantization == NONE:
        return
    if is_gpu:
        raise ModelError(f"--quantization {quantization} runs on a CPU alone: --device cpu")
    if dtype is not torch.bfloat16:
        raise ModelError(f"--quantization {quantization} computes in bfloat16: --dtype bfloat16")


def hold(weight: torch.Tensor, quantization: str) -> torch.Tensor | GroupedWeight:
    """A product's weight in the form that was chosen."""
    return weight if quantization == NONE else group_weight(weight, quantization)


def hold_head(weight: torch.Tensor, quantization: str) -> torch.Tensor | GroupedWeight:
    """The vocabulary's."""
    return hold(weight, NONE if quantization == NONE else INT8)
