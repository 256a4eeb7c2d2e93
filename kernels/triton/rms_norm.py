"""RMS norm (Zhang & Sennrich 2019), alone and fused with the residual's addition.

Knows one row. Invariant: rounds where the reference rounds, the sum to x's dtype, the normed row
before it is multiplied by the weight; a row's sum is one program's, whatever the batch.
"""

# pyright: standard, reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.triton.attention_plan import next_power_of_2


@triton.jit
def rms_norm_kernel(
    output_ptr,  # [num_tokens, SIZE]
    added_ptr,  # [num_tokens, SIZE], written where there is a residual
    x_ptr,  # [num_tokens, SIZE], tokens x_stride apart
    residual_ptr,  # [num_tokens, SIZE], in added's dtype
    weight_ptr,  # [SIZE]
    x_stride,
    eps,
    SIZE: tl.constexpr,
    PADDED_SIZE: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
):
    """Grid: (num_tokens,)"""
    token = tl.program_id(0).to(tl.int64)
    offsets = tl.arange(0, PADDED_SIZE)
    is_inside = offsets < SIZE
    x = tl.load(x_ptr + token * x_stride + offsets, mask=is_inside, other=0.0)
    wide = x.to(tl.float32)
    if HAS_RESIDUAL:
        residual = tl.load(residual_ptr + token * SIZE + offsets, mask=is_inside, other=0.0)
        added = (wide + residual.to(tl.float32)).to(residual.dtype)
        tl.store(added_ptr + token * SIZE + offsets, added, mask=is_inside)
        wide = added.to(tl.float32)
    mean_square = tl.sum(wide * wide, axis=0) / SIZE
    weight = tl.load(weight_ptr + offsets, mask=is_inside, other=0.0)
    normed = (wide * tl.rsqrt(mean_square + eps)).to(weight.dtype).to(tl.float32)
    output = (normed * weight.to(tl.float32)).to(weight.dtype)
    tl.store(output_ptr + token * SIZE + offsets, output, mask=is_inside)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See reference.rms_norm."""
    output = torch.empty(x.shape, dtype=weight.dtype, device=x.device)
    _launch(output, output, x, x, weight, eps, has_residual=False)
    return output


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """See reference.add_rms_norm."""
    assert residual.is_contiguous()
    output = torch.empty(x.shape, dtype=weight.dtype, device=x.device)
    added = torch.empty_like(residual)
    _launch(output, added, x, residual, weight, eps, has_residual=True)
    return output, added


def _launch(
    output: torch.Tensor,
    added: torch.Tensor,
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    has_residual: bool,
) -> None:
    num_tokens, size = x.shape
    assert x.stride(1) == 1
    padded_size = next_power_of_2(size)
    rms_norm_kernel[(num_tokens,)](
        output,
        added,
        x,
        residual,
        weight,
        x.stride(0),
        eps,
        SIZE=size,
        PADDED_SIZE=padded_size,
        HAS_RESIDUAL=has_residual,
        num_warps=4 if padded_size <= 2048 else 8,
    )
