"""A packed weight together with the product that takes it.

Knows which form goes with which product, no layer. Invariant: a row's result has the same bits in
every batch, alone or as a part of `decoder.cpp`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.grouped_weight import GroupedWeight
from kernels.native.library import GROUP_KINDS, K_STEP, NativeKernels

BFLOAT16, FLOAT = 2, 3  # decoder.cpp; GROUP_KINDS has the others


@dataclass(slots=True, frozen=True)
class NativeProduct:
    """x [num_rows, in_features] -> [num_rows, out_features]."""

    kernels: NativeKernels
    kind: int
    packed: torch.Tensor
    bias: torch.Tensor | None
    out_features: int
    in_features: int

    @classmethod
    def of(
        cls,
        kernels: NativeKernels,
        weight: torch.Tensor | GroupedWeight,  # of DTYPES
        bias: torch.Tensor | None,
    ) -> NativeProduct:
        if isinstance(weight, GroupedWeight):
            kind, packed = GROUP_KINDS[weight.method], kernels.pack_groups(weight)
            return cls(kernels, kind, packed, bias, weight.out_features, weight.in_features)
        out_features, in_features = weight.shape
        is_float = weight.dtype is torch.float32
        packed = kernels.pack_linear_float(weight) if is_float else kernels.pack_linear(weight)
        kind = FLOAT if is_float else BFLOAT16
        return cls(kernels, kind, packed, bias, out_features, in_features)

    @property
    def is_padded(self) -> bool:
        """Whether x gets zeros behind it first."""
        return self.kind != FLOAT and self.in_features % K_STEP != 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        arguments = (x, self.packed, self.bias, self.out_features)
        if self.kind == FLOAT:
            return self.kernels.linear_float(*arguments)
        if self.kind == BFLOAT16:
            return self.kernels.linear(*arguments)
        return self.kernels.linear_groups(self.kind, *arguments)
