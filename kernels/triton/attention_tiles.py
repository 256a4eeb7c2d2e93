"""What a program of paged attention does with a range of keys: the inner loop of both kernels.

FlashAttention-2's loop (Dao 2023) with the online softmax of Milakov & Gimelshein (2018), over keys
that are gathered through a block table (Kwon et al. 2023). Knows one tile of queries, one key head
and one row's block table. Invariant: tiles of keys begin at multiples of BLOCK_N of the position,
so which keys are summed together does not depend on where a chunk or a split begins; nothing that
no query of the tile sees is read.
"""

# pyright: standard, reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def load_heads(ptrs, is_row, dims, HEAD_DIM: tl.constexpr, IS_MASKED: tl.constexpr):
    """[rows, padded head_dim], 0 where there is no row; behind the head's end as well."""
    if IS_MASKED:
        return tl.load(ptrs, mask=is_row[:, None] & (dims[None, :] < HEAD_DIM), other=0.0)
    elif dims.shape[0] == HEAD_DIM:
        return tl.load(ptrs)
    else:
        return tl.load(ptrs, mask=dims[None, :] < HEAD_DIM, other=0.0)


@triton.jit
def scale_scores(products, SCALE: tl.constexpr, SOFT_CAP: tl.constexpr):
    """Scores for exp2: times log2(e); before that within ±SOFT_CAP, unless it is 0."""
    if SOFT_CAP > 0:
        # tanh(x) by exp, which may overflow to infinity and still gives 1.
        tanh = 1.0 - 2.0 / (tl.exp(products * (2.0 * SCALE / SOFT_CAP)) + 1.0)
        return tanh * (SOFT_CAP * LOG2_E)
    else:
        return products * (SCALE * LOG2_E)


@triton.jit
def attend_keys(
    acc,  # [BLOCK_M, padded head_dim] float32: values weighed so far
    row_sum,  # [BLOCK_M] float32: of the weights so far
    row_max,  # [BLOCK_M] float32: the largest score so far, times log2(e)
    query,  # [BLOCK_M, padded head_dim]
    query_positions,  # [BLOCK_M] int32
    key_ptr,  # [num_blocks, block_size, num_kv_heads, head_dim], moved to the key head
    value_ptr,  # as key_ptr
    table_ptr,  # [max_num_blocks] int32, the row's own
    first_key,  # a multiple of BLOCK_N
    end_key,
    first_visible,  # position of the first key that any query of the tile sees
    last_visible,  # and of the last one
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SLOT_STRIDE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SCALE: tl.constexpr,
    SOFT_CAP: tl.constexpr,  # 0: none
    WINDOW: tl.constexpr,  # 0: all of the context
    IS_MASKED: tl.constexpr,  # some query of the tile does not see some key of the range
):
    dims = tl.arange(0, query.shape[1])
    for start in range(first_key, end_key, BLOCK_N):
        positions = start + tl.arange(0, BLOCK_N)
        is_read = (positions >= first_visible) & (positions <= last_visible)
        block_ids = tl.load(table_ptr + positions // BLOCK_SIZE, mask=is_read, other=0)
        slots = block_ids.to(tl.int64) * BLOCK_SIZE + positions % BLOCK_SIZE
        offsets = slots[:, None] * SLOT_STRIDE + dims[None, :]
        keys = load_heads(key_ptr + offsets, is_read, dims, HEAD_DIM, IS_MASKED)
        products = tl.dot(query, tl.trans(keys), input_precision="ieee")
        scores = scale_scores(products, SCALE, SOFT_CAP)
        if IS_MASKED:
            distances = query_positions[:, None] - positions[None, :]
            is_seen = distances >= 0
            if WINDOW > 0:
                is_seen = is_seen & (distances < WINDOW)
            scores = tl.where(is_seen, scores, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, axis=1))
        # Of a query that has seen nothing yet: -inf less -inf would be NaN.
        finite_max = tl.where(new_max == float("-inf"), 0.0, new_max)
        weights = tl.exp2(scores - finite_max[:, None])
        kept = tl.exp2(row_max - finite_max)
        row_sum = row_sum * kept + tl.sum(weights, axis=1)
        values = load_heads(value_ptr + offsets, is_read, dims, HEAD_DIM, IS_MASKED)
        weighed = acc * kept[:, None]
        acc = tl.dot(weights.to(values.dtype), values, weighed, input_precision="ieee")
        row_max = new_max
    return acc, row_sum, row_max


@triton.jit
def attend_tile(
    query,  # [BLOCK_M, padded head_dim]
    query_positions,  # [BLOCK_M] int32
    key_ptr,  # see attend_keys
    value_ptr,
    table_ptr,
    first_key,  # a multiple of BLOCK_N
    end_key,
    first_position,  # of the tile's queries
    last_position,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SLOT_STRIDE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SCALE: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """acc, row_sum and row_max of the keys from first_key to end_key; without a mask where none is
    needed, which changes no bit."""
    acc = tl.zeros([query.shape[0], query.shape[1]], dtype=tl.float32)
    row_sum = tl.zeros([query.shape[0]], dtype=tl.float32)
    row_max = tl.full([query.shape[0]], float("-inf"), dtype=tl.float32)
    first_visible = 0
    masked_from = first_key
    if WINDOW > 0:
        first_visible = tl.maximum(first_position - WINDOW + 1, 0)
        masked_from = tl.maximum(first_key, first_visible // BLOCK_N * BLOCK_N)
    else:
        seen_by_all = tl.minimum(first_position + 1, end_key) // BLOCK_N * BLOCK_N
        masked_from = tl.maximum(first_key, seen_by_all)
        acc, row_sum, row_max = attend_keys(
            acc, row_sum, row_max, query, query_positions, key_ptr, value_ptr, table_ptr,
            first_key, masked_from, first_visible, last_position,
            HEAD_DIM, BLOCK_SIZE, SLOT_STRIDE, BLOCK_N, SCALE, SOFT_CAP, WINDOW, False,
        )  # fmt: skip
    return attend_keys(
        acc, row_sum, row_max, query, query_positions, key_ptr, value_ptr, table_ptr,
        masked_from, end_key, first_visible, last_position,
        HEAD_DIM, BLOCK_SIZE, SLOT_STRIDE, BLOCK_N, SCALE, SOFT_CAP, WINDOW, True,
    )  # fmt: skip
