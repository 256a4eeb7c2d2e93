"""Paged attention of a mixed batch, prefill chunks and decodes in one launch.

Tiles of queries over all rows are numbered through, and a program finds its row by bisecting
cu_seqlens_q, as in vLLM's unified attention (Ringlein et al. 2025, "The Anatomy of a Triton
Attention Kernel"); the loop over keys is `attention_tiles`. Knows the step's metadata, no layer.
Invariant: a token's result depends on the tile's shape and the token's own context alone.
"""

# pyright: standard, reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.triton.attention_plan import TritonAttentionPlan, next_power_of_2
from kernels.triton.attention_tiles import attend_tile, load_heads


@triton.jit
def find_row(cu_seqlens_q_ptr, num_rows, tile, BLOCK_Q: tl.constexpr):
    """The row of this tile: those of row r begin at cu_seqlens_q[r] // BLOCK_Q + r."""
    low = 0
    high = num_rows
    while low < high:
        middle = (low + high) // 2
        first_tile = tl.load(cu_seqlens_q_ptr + middle) // BLOCK_Q + middle
        if first_tile <= tile:
            low = middle + 1
        else:
            high = middle
    return low - 1


@triton.jit
def paged_attention_kernel(
    output_ptr,  # [num_tokens, num_heads, head_dim]
    query_ptr,  # [num_tokens, num_heads, head_dim], tokens query_stride apart
    key_ptr,  # [num_blocks, block_size, num_kv_heads, head_dim]
    value_ptr,  # as key_ptr
    tables_ptr,  # [num_rows, max_num_blocks] int32, rows table_stride apart
    cu_seqlens_q_ptr,  # [num_rows + 1] int32
    seq_lens_ptr,  # [num_rows] int32
    num_rows,
    query_stride,
    table_stride,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    PADDED_GROUP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SLOT_STRIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SCALE: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Grid: (num_tokens // BLOCK_Q + num_rows, num_kv_heads); some tiles have no token."""
    BLOCK_Q: tl.constexpr = BLOCK_M // PADDED_GROUP
    tile = tl.program_id(0)
    row = find_row(cu_seqlens_q_ptr, num_rows, tile, BLOCK_Q)
    start = tl.load(cu_seqlens_q_ptr + row)
    num_queries = tl.load(cu_seqlens_q_ptr + row + 1) - start
    first_query = (tile - start // BLOCK_Q - row) * BLOCK_Q
    if first_query < num_queries:
        num_before = tl.load(seq_lens_ptr + row) - num_queries
        first_head = tl.program_id(1) * HEAD_DIM
        in_tile = tl.arange(0, BLOCK_M)
        queries = first_query + in_tile // PADDED_GROUP
        is_query = (queries < num_queries) & (in_tile % PADDED_GROUP < GROUP_SIZE)
        dims = tl.arange(0, PADDED_DIM)
        tokens = (start + queries).to(tl.int64)[:, None]
        heads = (first_head * GROUP_SIZE + in_tile % PADDED_GROUP * HEAD_DIM)[:, None]
        query_ptrs = query_ptr + tokens * query_stride + heads + dims[None, :]
        last_position = num_before + tl.minimum(first_query + BLOCK_Q, num_queries) - 1
        acc, row_sum, _ = attend_tile(
            load_heads(query_ptrs, is_query, dims, HEAD_DIM, True), num_before + queries,
            key_ptr + first_head, value_ptr + first_head,
            tables_ptr + row.to(tl.int64) * table_stride,
            0, last_position + 1, num_before + first_query, last_position,
            HEAD_DIM, BLOCK_SIZE, SLOT_STRIDE, BLOCK_N, SCALE, SOFT_CAP, WINDOW,
        )  # fmt: skip
        token_size = tl.num_programs(1) * GROUP_SIZE * HEAD_DIM
        tl.store(
            output_ptr + tokens * token_size + heads + dims[None, :],
            (acc / row_sum[:, None]).to(output_ptr.dtype.element_ty),
            mask=is_query[:, None] & (dims[None, :] < HEAD_DIM),
        )


def paged_attention(
    query: torch.Tensor,  # [num_tokens, num_heads, head_dim], the last two contiguous
    key_cache: torch.Tensor,  # [num_blocks, block_size, num_kv_heads, head_dim]
    value_cache: torch.Tensor,  # as key_cache
    plan: TritonAttentionPlan,
) -> torch.Tensor:
    """See reference.paged_attention."""
    shape, metadata, tile = plan.shape, plan.metadata, plan.tile
    num_tokens, num_rows = query.shape[0], metadata.seq_lens.shape[0]
    assert query.stride()[1:] == (shape.head_dim, 1)
    assert metadata.block_tables.stride(1) == 1
    output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    grid = (num_tokens // tile.tokens(shape) + num_rows, shape.num_kv_heads)
    paged_attention_kernel[grid](
        output,
        query,
        key_cache,
        value_cache,
        metadata.block_tables,
        metadata.cu_seqlens_q,
        metadata.seq_lens,
        num_rows,
        query.stride(0),
        metadata.block_tables.stride(0),
        **plan.constants(),
        PADDED_GROUP=next_power_of_2(shape.group_size),
        BLOCK_M=tile.block_m,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    return output
