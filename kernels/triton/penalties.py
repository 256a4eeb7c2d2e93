"""Presence, frequency and repetition penalties, from token ids to changed logits.

A first kernel counts each row's tokens over the vocabulary, a second one applies what was counted;
nothing is sorted. Knows token ids and logits. Invariant: the order in which tokens are counted does
not matter, so the result is the same bits each time.
"""

# pyright: standard, reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

BLOCK = 1024
# Above any count of output tokens: the token is in the prompt or the output.
SEEN = tl.constexpr(1 << 30)


@dataclass(slots=True, frozen=True)
class PenaltyColumns:
    """One value for each row that has a penalty."""

    rows: torch.Tensor  # [n] int64, rows of the logits
    token_ids: torch.Tensor  # [n, width] int32: prompt, then output
    num_prompt_tokens: torch.Tensor  # [n] int32
    num_tokens: torch.Tensor  # [n] int32
    presence: torch.Tensor  # [n] float32
    frequency: torch.Tensor  # [n] float32
    repetition: torch.Tensor  # [n] float32


@triton.jit
def count_tokens_kernel(
    counts_ptr,  # [n, vocab_size] int32, zeros
    token_ids_ptr,  # [n, width] int32, rows token_stride apart
    num_prompt_tokens_ptr,  # [n] int32
    num_tokens_ptr,  # [n] int32
    vocab_size,
    token_stride,
    BLOCK_SIZE: tl.constexpr,
):
    """Grid: (n, cdiv(width, BLOCK_SIZE))"""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    is_token = at < tl.load(num_tokens_ptr + row)
    is_output = is_token & (at >= tl.load(num_prompt_tokens_ptr + row))
    token_ids = tl.load(token_ids_ptr + row * token_stride + at, mask=is_token, other=0)
    counters = counts_ptr + row * vocab_size + token_ids
    tl.atomic_or(counters, SEEN, mask=is_token)
    tl.atomic_add(counters, 1, mask=is_output)


@triton.jit
def apply_penalties_kernel(
    logits_ptr,  # [num_rows, vocab_size] float32, rows logit_stride apart, changed
    counts_ptr,  # [n, vocab_size] int32
    rows_ptr,  # [n] int64
    presence_ptr,  # [n] float32
    frequency_ptr,  # [n] float32
    repetition_ptr,  # [n] float32
    vocab_size,
    logit_stride,
    BLOCK_SIZE: tl.constexpr,
):
    """Grid: (n, cdiv(vocab_size, BLOCK_SIZE))"""
    index = tl.program_id(0).to(tl.int64)
    token_ids = tl.program_id(1) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    is_token = token_ids < vocab_size
    counted = tl.load(counts_ptr + index * vocab_size + token_ids, mask=is_token, other=0)
    is_seen = counted >= SEEN
    num_outputs = tl.where(is_seen, counted - SEEN, 0).to(tl.float32)
    logit_ptrs = logits_ptr + tl.load(rows_ptr + index) * logit_stride + token_ids
    logits = tl.load(logit_ptrs, mask=is_token, other=0.0)
    repetition = tl.load(repetition_ptr + index)
    repeated = tl.where(logits > 0, tl.div_rn(logits, repetition), logits * repetition)
    logits = tl.where(is_seen, repeated, logits)
    logits = logits - tl.load(frequency_ptr + index) * num_outputs
    logits = logits - tl.where(num_outputs > 0, tl.load(presence_ptr + index), 0.0)
    tl.store(logit_ptrs, logits, mask=is_token & is_seen)


def apply_penalties(logits: torch.Tensor, columns: PenaltyColumns) -> None:
    """See reference.apply_penalties; logits [num_rows, vocab_size] float32 are changed in place."""
    num_penalized, width = columns.token_ids.shape
    vocab_size = logits.shape[1]
    assert logits.dtype == torch.float32
    assert logits.stride(1) == 1
    assert columns.token_ids.stride(1) == 1
    counts = torch.zeros(num_penalized, vocab_size, dtype=torch.int32, device=logits.device)
    count_tokens_kernel[(num_penalized, triton.cdiv(width, BLOCK))](
        counts,
        columns.token_ids,
        columns.num_prompt_tokens,
        columns.num_tokens,
        vocab_size,
        columns.token_ids.stride(0),
        BLOCK_SIZE=BLOCK,
        num_warps=4,
    )
    apply_penalties_kernel[(num_penalized, triton.cdiv(vocab_size, BLOCK))](
        logits,
        counts,
        columns.rows,
        columns.presence,
        columns.frequency,
        columns.repetition,
        vocab_size,
        logits.stride(0),
        BLOCK_SIZE=BLOCK,
        num_warps=4,
    )
