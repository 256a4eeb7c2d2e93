"""Draws a token for each row: min-p, top-k and top-p by a search for a threshold, without a sort.

A weight in [0, 1] has the order of its float32 bits, so the smallest weight that top-k or top-p
keeps is found four bits at a time, by counting or adding up what is not below sixteen candidates:
eight passes over a row that lies in the cache (radix selection, as FlashInfer's and vLLM's samplers
avoid the sort with thresholds). Noise is Philox 4x32-10 (Salmon et al. 2011) of (seed, choice,
output index). Knows logits and columns. Invariant: a row is one program's, so its token depends on
itself alone; sums are in float64, in the vocabulary's order.
"""

# pyright: standard, reportCallIssue=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

BLOCK = 1024
NUM_WARPS = 16


@dataclass(slots=True, frozen=True)
class DrawColumns:
    """One value per row. Temperature 0: the likeliest. No top_k is 0, no top_p 1, no min_p 0."""

    temperatures: torch.Tensor  # [n] float32
    top_ks: torch.Tensor  # [n] int64
    top_ps: torch.Tensor  # [n] float64
    min_ps: torch.Tensor  # [n] float32
    seeds: torch.Tensor  # [n] int64, all 64 bits
    choices: torch.Tensor  # [n] int64


@triton.jit
def load_weights(row_ptr, token_ids, vocab_size, best, temperature, floor):
    """float32 weights relative to the best one; 0 below the floor and behind the vocabulary."""
    logits = tl.load(row_ptr + token_ids, mask=token_ids < vocab_size, other=float("-inf"))
    weights = tl.exp(tl.div_rn(logits, temperature) - best)
    return tl.where(weights >= floor, weights, 0.0)


@triton.jit
def sum_weights(row_ptr, vocab_size, best, temperature, floor, BLOCK_SIZE: tl.constexpr):
    total = tl.zeros([], dtype=tl.float64)
    for start in range(0, vocab_size, BLOCK_SIZE):
        token_ids = start + tl.arange(0, BLOCK_SIZE)
        weights = load_weights(row_ptr, token_ids, vocab_size, best, temperature, floor)
        total += tl.sum(weights.to(tl.float64), axis=0)
    return total


@triton.jit
def find_threshold(
    row_ptr,
    vocab_size,
    best,
    temperature,
    floor,
    wanted,  # float64
    BLOCK_SIZE: tl.constexpr,
    IS_COUNT: tl.constexpr,
):
    """The largest weight such that those not below it are `wanted` many, or weigh so much."""
    low = 0
    for digit in range(8):
        shift = tl.maximum(26 - 4 * digit, 0)  # of 30 bits: 1.0 has no higher one
        candidates = low + (tl.arange(0, 16) << shift)
        totals = tl.zeros([16], dtype=tl.float64)
        for start in range(0, vocab_size, BLOCK_SIZE):
            token_ids = start + tl.arange(0, BLOCK_SIZE)
            weights = load_weights(row_ptr, token_ids, vocab_size, best, temperature, floor)
            is_above = weights.to(tl.int32, bitcast=True)[None, :] >= candidates[:, None]
            if IS_COUNT:
                totals += tl.sum(is_above.to(tl.int32), axis=1).to(tl.float64)
            else:
                kept = tl.where(is_above, weights.to(tl.float64)[None, :], 0.0)
                totals += tl.sum(kept, axis=1)
        # The first candidate always has enough; the others have less and less.
        low += (tl.maximum(tl.sum((totals >= wanted).to(tl.int32), axis=0), 1) - 1) << shift
    return low.to(tl.float32, bitcast=True)


@triton.jit
def find_best(row_ptr, vocab_size, BLOCK_SIZE: tl.constexpr):
    """The largest logit, the lowest id that has it, and how many logits are no numbers."""
    best = float("-inf")
    best_id = 0
    num_nan = 0
    for start in range(0, vocab_size, BLOCK_SIZE):
        token_ids = start + tl.arange(0, BLOCK_SIZE)
        logits = tl.load(row_ptr + token_ids, mask=token_ids < vocab_size, other=float("-inf"))
        is_nan = logits != logits
        num_nan += tl.sum(is_nan.to(tl.int32), axis=0)
        logits = tl.where(is_nan, float("-inf"), logits)
        highest = tl.max(logits, axis=0)
        first = tl.min(tl.where(logits == highest, token_ids, vocab_size), axis=0)
        best_id = tl.where(highest > best, first, best_id)
        best = tl.maximum(best, highest)
    return best, best_id, num_nan


@triton.jit
def uniform(seed, choice, output_index):
    """See reference.philox_uniform; three scalars of 64 bits."""
    zero = tl.zeros([], dtype=tl.uint32)
    word, _, _, _ = tl.philox(
        seed, output_index.to(tl.uint32), choice.to(tl.uint32), zero, zero, 10
    )
    return (word.to(tl.float64) + 0.5) * (1.0 / 4294967296.0)


@triton.jit
def draw(row_ptr, vocab_size, best, temperature, floor, noise, BLOCK_SIZE: tl.constexpr):
    """The first token whose cumulative weight exceeds the noise's share of all."""
    target = noise * sum_weights(row_ptr, vocab_size, best, temperature, floor, BLOCK_SIZE)
    before = tl.zeros([], dtype=tl.float64)
    start = 0
    token_id = 0
    is_found = 0
    while (start < vocab_size) & (is_found == 0):
        token_ids = start + tl.arange(0, BLOCK_SIZE)
        weights = load_weights(row_ptr, token_ids, vocab_size, best, temperature, floor)
        is_kept = weights > 0
        wide = weights.to(tl.float64)
        after = before + tl.sum(wide, axis=0)
        is_here = is_kept & (before + tl.cumsum(wide, axis=0) > target)
        # Where rounding puts the target behind the last token, it is the last one.
        last = tl.max(tl.where(is_kept, token_ids, token_id), axis=0)
        first = tl.min(tl.where(is_here, token_ids, last), axis=0)
        is_found = (after > target).to(tl.int32)
        token_id = tl.where(is_found == 1, first, last)
        before = after
        start += BLOCK_SIZE
    return token_id


@triton.jit
def sample_tokens_kernel(
    tokens_ptr,  # [num_rows] int64
    is_bad_ptr,  # [num_rows] int64: 1 where the best logit is no finite number
    logits_ptr,  # [num_rows, vocab_size] float32, rows logit_stride apart
    temperatures_ptr,  # [num_rows] float32
    top_ks_ptr,  # [num_rows] int64
    top_ps_ptr,  # [num_rows] float64
    min_ps_ptr,  # [num_rows] float32
    seeds_ptr,  # [num_rows] int64
    choices_ptr,  # [num_rows] int64
    output_indices_ptr,  # [num_rows] int64
    vocab_size,
    logit_stride,
    BLOCK_SIZE: tl.constexpr,
):
    """Grid: (num_rows,)"""
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * logit_stride
    best_logit, token_id, num_nan = find_best(row_ptr, vocab_size, BLOCK_SIZE)
    is_bad = (num_nan > 0) | (tl.abs(best_logit) == float("inf"))
    temperature = tl.load(temperatures_ptr + row)
    if (temperature > 0) & (is_bad == 0):
        best = tl.div_rn(best_logit, temperature)
        floor = tl.load(min_ps_ptr + row)
        top_k = tl.minimum(tl.load(top_ks_ptr + row), vocab_size)
        if top_k > 0:
            least = find_threshold(
                row_ptr, vocab_size, best, temperature, 0.0, top_k.to(tl.float64), BLOCK_SIZE, True
            )
            floor = tl.maximum(floor, least)
        top_p = tl.load(top_ps_ptr + row)
        if top_p < 1.0:
            total = sum_weights(row_ptr, vocab_size, best, temperature, floor, BLOCK_SIZE)
            least = find_threshold(
                row_ptr, vocab_size, best, temperature, floor, top_p * total, BLOCK_SIZE, False
            )
            floor = tl.maximum(floor, least)
        noise = uniform(
            tl.load(seeds_ptr + row),
            tl.load(choices_ptr + row),
            tl.load(output_indices_ptr + row),
        )
        token_id = draw(row_ptr, vocab_size, best, temperature, floor, noise, BLOCK_SIZE)
    tl.store(tokens_ptr + row, token_id.to(tl.int64))
    tl.store(is_bad_ptr + row, is_bad.to(tl.int64))


def sample_tokens(
    logits: torch.Tensor,  # [num_rows, vocab_size] float32
    columns: DrawColumns,
    output_indices: torch.Tensor,  # [num_rows] int64
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens [num_rows] int64, and 1 for each row whose logits are not numbers [num_rows] int64.
    See reference.filtered_weights, reference.draw and reference.philox_uniform."""
    num_rows, vocab_size = logits.shape
    assert logits.dtype == torch.float32
    assert logits.stride(1) == 1
    tokens = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    is_bad = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    sample_tokens_kernel[(num_rows,)](
        tokens,
        is_bad,
        logits,
        columns.temperatures,
        columns.top_ks,
        columns.top_ps,
        columns.min_ps,
        columns.seeds,
        columns.choices,
        output_indices,
        vocab_size,
        logits.stride(0),
        BLOCK_SIZE=BLOCK,
        num_warps=NUM_WARPS,
    )
    return tokens, is_bad
