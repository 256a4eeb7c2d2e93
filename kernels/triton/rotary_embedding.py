"""Rotary position embedding (Su et al. 2021), in Hugging Face's layout of halves.

Knows one token's heads. Invariant: computed in float32 and rounded once; the reference rounds each
product as well, so in 16 bits the two differ in the last place.
"""

# pyright: standard, reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.triton.attention_plan import next_power_of_2


@triton.jit
def rotary_embedding_kernel(
    output_ptr,  # [num_tokens, num_heads, 2 * HALF]
    x_ptr,  # [num_tokens, num_heads, 2 * HALF], tokens x_stride apart
    cos_ptr,  # [num_tokens, 2 * HALF], both halves equal
    sin_ptr,  # [num_tokens, 2 * HALF], the first half negated
    num_heads,
    x_stride,
    HALF: tl.constexpr,
    PADDED_HALF: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
):
    """Grid: (num_tokens, cdiv(num_heads, BLOCK_HEADS))"""
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    dims = tl.arange(0, PADDED_HALF)
    offsets = heads[:, None] * (2 * HALF) + dims[None, :]
    is_inside = (heads[:, None] < num_heads) & (dims[None, :] < HALF)
    x_ptrs = x_ptr + token * x_stride + offsets
    first = tl.load(x_ptrs, mask=is_inside, other=0.0).to(tl.float32)
    second = tl.load(x_ptrs + HALF, mask=is_inside, other=0.0).to(tl.float32)
    angle = token * (2 * HALF) + HALF + dims
    cos = tl.load(cos_ptr + angle, mask=dims < HALF, other=0.0).to(tl.float32)[None, :]
    sin = tl.load(sin_ptr + angle, mask=dims < HALF, other=0.0).to(tl.float32)[None, :]
    dtype = output_ptr.dtype.element_ty
    output_ptrs = output_ptr + token * num_heads * (2 * HALF) + offsets
    tl.store(output_ptrs, (first * cos - second * sin).to(dtype), mask=is_inside)
    tl.store(output_ptrs + HALF, (second * cos + first * sin).to(dtype), mask=is_inside)


def rotary_embedding(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """See kernels.rotary_embedding."""
    num_tokens, num_heads, head_dim = x.shape
    assert x.stride()[1:] == (head_dim, 1)
    assert cos.is_contiguous()
    assert sin.is_contiguous()
    output = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    block_heads = min(next_power_of_2(num_heads), 16)
    rotary_embedding_kernel[(num_tokens, triton.cdiv(num_heads, block_heads))](
        output,
        x,
        cos,
        sin,
        num_heads,
        x.stride(0),
        HALF=head_dim // 2,
        PADDED_HALF=next_power_of_2(head_dim // 2),
        BLOCK_HEADS=block_heads,
        num_warps=4,
    )
    return output
