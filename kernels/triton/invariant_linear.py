"""Products x @ weight.T (+ bias) whose rows have the same bits in any batch.

One shape of tiles for every number of rows, and one program that sums over all of the inner
dimension in order, without splitting it (He et al. 2025, "Defeating Nondeterminism in LLM
Inference"). Knows matrices. Invariant: nothing about a launch but its grid depends on the number
of rows.
"""

# pyright: standard, reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl

GROUP_ROWS = 8  # tiles of rows that share a tile of the weight while it is in the cache


@triton.jit
def invariant_linear_kernel(
    output_ptr,  # [num_rows, out_features]
    x_ptr,  # [num_rows, in_features], rows x_stride apart
    weight_ptr,  # [out_features, in_features]
    bias_ptr,  # [out_features]; the weight again where there is none
    num_rows,
    out_features,
    in_features,
    x_stride,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """Grid: (cdiv(num_rows, BLOCK_M) * cdiv(out_features, BLOCK_N),)"""
    num_row_tiles = tl.cdiv(num_rows, BLOCK_M)
    tiles_of_group = GROUP_M * tl.cdiv(out_features, BLOCK_N)
    group = tl.program_id(0) // tiles_of_group
    group_size = tl.minimum(num_row_tiles - group * GROUP_M, GROUP_M)
    in_group = tl.program_id(0) % tiles_of_group
    rows = (group * GROUP_M + in_group % group_size) * BLOCK_M + tl.arange(0, BLOCK_M)
    outs = (in_group // group_size) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_row = rows[:, None] < num_rows
    is_out = outs[None, :] < out_features
    row_ptrs = x_ptr + rows.to(tl.int64)[:, None] * x_stride
    out_ptrs = weight_ptr + outs.to(tl.int64)[None, :] * in_features
    acc = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    for start in range(0, in_features, BLOCK_K):
        inner = start + tl.arange(0, BLOCK_K)
        is_inner = inner < in_features
        x = tl.load(row_ptrs + inner[None, :], mask=is_row & is_inner[None, :], other=0.0)
        weight = tl.load(out_ptrs + inner[:, None], mask=is_out & is_inner[:, None], other=0.0)
        acc = tl.dot(x, weight, acc, input_precision="ieee")
    if HAS_BIAS:
        acc += tl.load(bias_ptr + outs, mask=outs < out_features, other=0.0).to(tl.float32)[None, :]
    offsets = rows.to(tl.int64)[:, None] * out_features + outs[None, :]
    tl.store(output_ptr + offsets, acc.to(output_ptr.dtype.element_ty), mask=is_row & is_out)


def linear_tiles(dtype: torch.dtype) -> dict[str, int]:
    if dtype == torch.float32:
        return {"BLOCK_M": 32, "BLOCK_N": 64, "BLOCK_K": 16, "num_warps": 4, "num_stages": 2}
    return {"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 64, "num_warps": 4, "num_stages": 3}


def invariant_linear(
    x: torch.Tensor,  # [num_rows, in_features]
    weight: torch.Tensor,  # [out_features, in_features]
    bias: torch.Tensor | None = None,  # [out_features]
) -> torch.Tensor:
    """[num_rows, out_features]: F.linear."""
    num_rows, in_features = x.shape
    out_features = weight.shape[0]
    assert weight.shape[1] == in_features
    assert x.stride(1) == 1
    assert weight.is_contiguous()
    output = torch.empty(num_rows, out_features, dtype=x.dtype, device=x.device)
    tiles = linear_tiles(x.dtype)
    grid = triton.cdiv(num_rows, tiles["BLOCK_M"]) * triton.cdiv(out_features, tiles["BLOCK_N"])
    invariant_linear_kernel[(grid,)](
        output,
        x,
        weight,
        weight if bias is None else bias,
        num_rows,
        out_features,
        in_features,
        x.stride(0),
        **tiles,
        GROUP_M=GROUP_ROWS,
        HAS_BIAS=bias is not None,
    )
    return output
