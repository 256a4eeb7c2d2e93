"""Paged attention of decodes over long contexts, each row's keys cut into parts that run at once.

Flash-Decoding (Dao et al. 2023): a first kernel attends within each part, a second one merges the
parts by their maxima and sums. Knows rows of one query. Invariant: parts begin at multiples of
BLOCK_N; an empty part takes no part in the merge. How many parts there are depends on the batch, so
a batch-invariant plan never comes here.
"""

# pyright: standard, reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.triton.attention_plan import TritonAttentionPlan
from kernels.triton.attention_tiles import attend_tile, load_heads


@triton.jit
def split_kv_kernel(
    partial_ptr,  # [num_rows, num_heads, num_splits, head_dim] float32
    max_ptr,  # [num_rows, num_heads, num_splits] float32: the largest score, times log2(e)
    sum_ptr,  # as max_ptr: the sum of the weights
    query_ptr,  # [num_rows, num_heads, head_dim], rows query_stride apart
    key_ptr,  # [num_blocks, block_size, num_kv_heads, head_dim]
    value_ptr,  # as key_ptr
    tables_ptr,  # [num_rows, max_num_blocks] int32, rows table_stride apart
    seq_lens_ptr,  # [num_rows] int32
    query_stride,
    table_stride,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SLOT_STRIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SCALE: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Grid: (num_rows, num_kv_heads, num_splits)"""
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(2)
    num_splits = tl.num_programs(2)
    seq_len = tl.load(seq_lens_ptr + row)
    split_keys = tl.cdiv(tl.cdiv(seq_len, num_splits), BLOCK_N) * BLOCK_N
    first_key = split * split_keys
    end_key = tl.minimum(first_key + split_keys, seq_len)
    in_tile = tl.arange(0, BLOCK_M)
    is_head = in_tile < GROUP_SIZE
    heads = tl.program_id(1) * GROUP_SIZE + in_tile
    dims = tl.arange(0, PADDED_DIM)
    in_row = heads[:, None] * HEAD_DIM + dims[None, :]
    first_dim = tl.program_id(1) * HEAD_DIM
    position = seq_len - 1
    acc, row_sum, row_max = attend_tile(
        load_heads(query_ptr + row * query_stride + in_row, is_head, dims, HEAD_DIM, True),
        position + tl.zeros([BLOCK_M], dtype=tl.int32),
        key_ptr + first_dim, value_ptr + first_dim, tables_ptr + row * table_stride,
        first_key, end_key, position, position,
        HEAD_DIM, BLOCK_SIZE, SLOT_STRIDE, BLOCK_N, SCALE, SOFT_CAP, WINDOW,
    )  # fmt: skip
    num_heads = tl.num_programs(1) * GROUP_SIZE
    parts = (row * num_heads + heads) * num_splits + split
    is_inside = is_head[:, None] & (dims[None, :] < HEAD_DIM)
    tl.store(partial_ptr + parts[:, None] * HEAD_DIM + dims[None, :], acc, mask=is_inside)
    tl.store(max_ptr + parts, row_max, mask=is_head)
    tl.store(sum_ptr + parts, row_sum, mask=is_head)


@triton.jit
def merge_splits_kernel(
    output_ptr,  # [num_rows, num_heads, head_dim]
    partial_ptr,  # see split_kv_kernel
    max_ptr,
    sum_ptr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    NUM_SPLITS: tl.constexpr,  # a power of 2
):
    """Grid: (num_rows * num_heads,)"""
    head = tl.program_id(0).to(tl.int64)
    splits = tl.arange(0, NUM_SPLITS)
    dims = tl.arange(0, PADDED_DIM)
    part_max = tl.load(max_ptr + head * NUM_SPLITS + splits)
    part_sum = tl.load(sum_ptr + head * NUM_SPLITS + splits)
    highest = tl.max(part_max, axis=0)
    # Of a row that only fills the batch up all parts are empty.
    finite_highest = tl.where(highest == float("-inf"), 0.0, highest)
    weights = tl.exp2(part_max - finite_highest)
    offsets = (head * NUM_SPLITS + splits)[:, None] * HEAD_DIM + dims[None, :]
    partial = tl.load(partial_ptr + offsets, mask=dims[None, :] < HEAD_DIM, other=0.0)
    total = tl.sum(weights * part_sum, axis=0)
    merged = tl.sum(partial * weights[:, None], axis=0) / tl.where(total == 0.0, 1.0, total)
    dtype = output_ptr.dtype.element_ty
    tl.store(output_ptr + head * HEAD_DIM + dims, merged.to(dtype), mask=dims < HEAD_DIM)


def split_kv_attention(
    query: torch.Tensor,  # [num_rows, num_heads, head_dim], the last two contiguous
    key_cache: torch.Tensor,  # [num_blocks, block_size, num_kv_heads, head_dim]
    value_cache: torch.Tensor,  # as key_cache
    plan: TritonAttentionPlan,
) -> torch.Tensor:
    """See reference.paged_attention; every row has one query."""
    shape, metadata, tile = plan.shape, plan.metadata, plan.tile
    num_rows, num_splits = query.shape[0], plan.num_splits
    assert metadata.max_seqlen_q == 1
    assert query.stride()[1:] == (shape.head_dim, 1)
    assert tile.block_m >= shape.group_size
    parts = (num_rows, shape.num_heads, num_splits)
    device = query.device
    partial = torch.empty(*parts, shape.head_dim, dtype=torch.float32, device=device)
    part_max = torch.empty(parts, dtype=torch.float32, device=device)
    part_sum = torch.empty(parts, dtype=torch.float32, device=device)
    constants = plan.constants()
    split_kv_kernel[(num_rows, shape.num_kv_heads, num_splits)](
        partial,
        part_max,
        part_sum,
        query,
        key_cache,
        value_cache,
        metadata.block_tables,
        metadata.seq_lens,
        query.stride(0),
        metadata.block_tables.stride(0),
        **constants,
        BLOCK_M=tile.block_m,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    output = torch.empty(query.shape, dtype=query.dtype, device=device)
    merge_splits_kernel[(num_rows * shape.num_heads,)](
        output,
        partial,
        part_max,
        part_sum,
        HEAD_DIM=shape.head_dim,
        PADDED_DIM=constants["PADDED_DIM"],
        NUM_SPLITS=num_splits,
        num_warps=4,
    )
    return output
