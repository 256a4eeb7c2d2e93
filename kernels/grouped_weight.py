"""Weights in groups of 32 inputs, each with a scale of its own: what they are and what they mean.

The grids are llama.cpp's. `int8` is its Q8_0: a scale and whole numbers to ±127. `q4_1` is its
Q4_1: a scale, a minimum and whole numbers from 0 to 15. Knows no product and no model. Invariant:
what a group means is `dequantized`, bfloat16 rounded once; whatever multiplies with it gives the
bits of a product with those values.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

GROUP_SIZE = 32
INT8, Q4_1 = "int8", "q4_1"
METHODS = (INT8, Q4_1)
MAX_INT8, MAX_Q4 = 127, 15
ROWS_AT_A_TIME = 4096  # so that a vocabulary does not need its size in float32 several times


@dataclass(slots=True, frozen=True)
class GroupedWeight:
    """Of [out_features, in_features]; the last group of a row is filled up with what it ends in."""

    codes: torch.Tensor  # [out_features, num_groups, GROUP_SIZE], int8
    scales: torch.Tensor  # [out_features, num_groups], float16
    minima: torch.Tensor | None  # like scales; None: int8
    in_features: int

    @property
    def out_features(self) -> int:
        return self.codes.shape[0]

    @property
    def dtype(self) -> torch.dtype:
        """Of the products' inputs and results."""
        return torch.bfloat16

    @property
    def method(self) -> str:
        return INT8 if self.minima is None else Q4_1

    def dequantized(self) -> torch.Tensor:
        """The weight that this stands for, [out_features, in_features] bfloat16."""
        values = self.codes.float() * self.scales.float().unsqueeze(2)
        if self.minima is not None:
            values += self.minima.float().unsqueeze(2)
        return values.bfloat16().flatten(1)[:, : self.in_features].contiguous()


def group_weight(weight: torch.Tensor, method: str) -> GroupedWeight:
    """The groups that come nearest to weight [out_features, in_features]."""
    assert method in METHODS
    starts = range(0, weight.shape[0], ROWS_AT_A_TIME)
    parts = [_group_rows(weight[start : start + ROWS_AT_A_TIME], method) for start in starts]
    codes, scales, minima = zip(*parts, strict=True)
    return GroupedWeight(
        torch.cat(codes),
        torch.cat(scales),
        torch.cat(minima) if method == Q4_1 else None,
        weight.shape[1],
    )


def _group_rows(rows: torch.Tensor, method: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes, scales and minima, which int8 has none of."""
    values = rows.float()
    num_missing = -rows.shape[1] % GROUP_SIZE
    if num_missing:
        values = F.pad(values.unsqueeze(0), (0, num_missing), mode="replicate").squeeze(0)
    values = values.view(rows.shape[0], -1, GROUP_SIZE)
    if method == INT8:
        lowest, steps = torch.zeros(1, 1), torch.amax(values.abs(), 2) / MAX_INT8
        limits = (-MAX_INT8, MAX_INT8)
    else:
        lowest = torch.amin(values, 2)
        steps, limits = (torch.amax(values, 2) - lowest) / MAX_Q4, (0, MAX_Q4)
    scales, minima = steps.half(), lowest.half()
    divisors = torch.where(scales > 0, scales.float(), 1.0).unsqueeze(2)
    codes = (values - minima.float().unsqueeze(2)).div_(divisors).round_().clamp_(*limits)
    return codes.to(torch.int8), scales, minima
