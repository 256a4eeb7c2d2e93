"""Writes the keys and values of a step into their slots (Kwon et al. 2023, "PagedAttention").

Knows slots, no block table. Invariant: a token with a negative slot is written nowhere, which is
what fills up a batch of a recorded graph.
"""

# pyright: standard, reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.triton.attention_plan import next_power_of_2


@triton.jit
def reshape_and_cache_kernel(
    key_ptr,  # [num_tokens, num_kv_heads, head_dim], tokens key_stride apart
    value_ptr,  # the same, value_stride apart
    key_cache_ptr,  # [num_slots, num_kv_heads, head_dim]
    value_cache_ptr,  # as key_cache_ptr
    slots_ptr,  # [num_tokens] int64
    key_stride,
    value_stride,
    SIZE: tl.constexpr,  # num_kv_heads * head_dim
    PADDED_SIZE: tl.constexpr,
):
    """Grid: (num_tokens,)"""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + token).to(tl.int64)
    if slot >= 0:
        offsets = tl.arange(0, PADDED_SIZE)
        is_inside = offsets < SIZE
        key = tl.load(key_ptr + token * key_stride + offsets, mask=is_inside)
        value = tl.load(value_ptr + token * value_stride + offsets, mask=is_inside)
        tl.store(key_cache_ptr + slot * SIZE + offsets, key, mask=is_inside)
        tl.store(value_cache_ptr + slot * SIZE + offsets, value, mask=is_inside)


def reshape_and_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """See reference.reshape_and_cache."""
    num_tokens, num_kv_heads, head_dim = key.shape
    assert key.stride()[1:] == (head_dim, 1)
    assert value.stride()[1:] == (head_dim, 1)
    assert key_cache.is_contiguous()
    assert value_cache.is_contiguous()
    size = num_kv_heads * head_dim
    reshape_and_cache_kernel[(num_tokens,)](
        key,
        value,
        key_cache,
        value_cache,
        slot_mapping,
        key.stride(0),
        value.stride(0),
        SIZE=size,
        PADDED_SIZE=next_power_of_2(size),
        num_warps=4,
    )
