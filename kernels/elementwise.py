"""Norm, rotation, activation and cache writes in vectorised torch, bit by bit what stands alone.

Knows nothing about models. Invariant: only operations whose result for an element does not depend
on where in the tensor it stands. That excludes torch's silu, sigmoid and exp2: the end of a tensor
goes through other code, with other last bits (measured; tests/kernels/test_elementwise.py).
"""

from __future__ import annotations

from functools import lru_cache

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See reference.rms_norm."""
    wide = x.float()
    squares = (wide * wide).sum(dim=-1, keepdim=True)
    scale = squares.div_(_number(x.shape[-1])).add_(_number(eps)).rsqrt_()
    return (wide * scale).to(weight.dtype).mul_(weight)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """See reference.add_rms_norm."""
    added = x + residual
    return rms_norm(added, weight, eps), added


def rotary_embedding(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """See reference.rotary_embedding. cos [num_tokens, 1, head_dim], its halves equal; sin the
    same with its first half negated."""
    swapped = torch.roll(x, x.shape[-1] // 2, dims=-1)
    return (x * cos).add_(swapped.mul_(sin))


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """See reference.silu_and_mul."""
    half = x.shape[-1] // 2
    gate = torch.empty(x.shape[0], half).copy_(x[:, :half])
    denominator = gate.neg().exp_().add_(_number(1.0))
    return gate.div_(denominator).to(x.dtype).mul(x[:, half:])


def reshape_and_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """See reference.reshape_and_cache."""
    key_cache.flatten(0, 1).index_copy_(0, slot_mapping, key)
    value_cache.flatten(0, 1).index_copy_(0, slot_mapping, value)


@lru_cache(maxsize=64)
def _number(value: float) -> torch.Tensor:
    """As a tensor: torch would make one of a Python number at each call, and that takes longer."""
    with torch.inference_mode(mode=False):
        return torch.tensor([value], dtype=torch.float32)
