"""The gate of a SwiGLU feed-forward (Shazeer 2020): silu(gate) * up.

Knows one row of gate and up. Invariant: silu in float32, rounded to x's dtype before the product.
"""

# pyright: standard, reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 1024


@triton.jit
def silu_and_mul_kernel(
    output_ptr,  # [num_tokens, size]
    x_ptr,  # [num_tokens, 2 * size]: gate, then up
    size,
    BLOCK_SIZE: tl.constexpr,
):
    """Grid: (num_tokens, cdiv(size, BLOCK_SIZE))"""
    token = tl.program_id(0).to(tl.int64)
    offsets = tl.program_id(1) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    is_inside = offsets < size
    gate = tl.load(x_ptr + token * 2 * size + offsets, mask=is_inside, other=0.0)
    up = tl.load(x_ptr + token * 2 * size + size + offsets, mask=is_inside, other=0.0)
    wide = gate.to(tl.float32)
    silu = (wide / (1.0 + tl.exp(-wide))).to(gate.dtype)
    product = (silu.to(tl.float32) * up.to(tl.float32)).to(gate.dtype)
    tl.store(output_ptr + token * size + offsets, product, mask=is_inside)


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """See reference.silu_and_mul."""
    num_tokens, double_size = x.shape
    assert x.is_contiguous()
    size = double_size // 2
    output = torch.empty(num_tokens, size, dtype=x.dtype, device=x.device)
    grid = (num_tokens, triton.cdiv(size, BLOCK))
    silu_and_mul_kernel[grid](output, x, size, BLOCK_SIZE=BLOCK, num_warps=4)
    return output
