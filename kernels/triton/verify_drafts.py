"""Which draft tokens stand: the longest prefix that the model itself has drawn.

Speculative decoding (Leviathan et al. 2023). Each draft's position was sampled like any other, with
the noise of its own output index, and the draft stands where it is that token. For a draft that
names one token this accepts as often as rejection sampling does, namely with the model's own
probability of it, and the text is, token by token, what it would be without drafts. Knows token
ids. Invariant: what is given out is a prefix of what was sampled.
"""

# pyright: standard, reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.triton.attention_plan import next_power_of_2


@triton.jit
def verify_drafts_kernel(
    counts_ptr,  # [num_rows] int32
    sampled_ptr,  # [num_positions] int64
    drafts_ptr,  # [num_positions] int64; what stands at a row's last position means nothing
    starts_ptr,  # [num_rows + 1] int32
    MAX_POSITIONS: tl.constexpr,
):
    """Grid: (num_rows,)"""
    row = tl.program_id(0)
    start = tl.load(starts_ptr + row)
    num_drafts = tl.load(starts_ptr + row + 1) - start - 1
    positions = tl.arange(0, MAX_POSITIONS)
    is_draft = positions < num_drafts
    sampled = tl.load(sampled_ptr + start + positions, mask=is_draft, other=0)
    drafts = tl.load(drafts_ptr + start + positions, mask=is_draft, other=0)
    # The first position whose draft is another token, or the one behind the drafts.
    is_end = (positions == num_drafts) | (is_draft & (sampled != drafts))
    first_end = tl.min(tl.where(is_end, positions, MAX_POSITIONS), axis=0)
    tl.store(counts_ptr + row, first_end + 1)


def verify_drafts(
    sampled: torch.Tensor,  # [num_positions] int64
    drafts: torch.Tensor,  # [num_positions] int64
    starts: torch.Tensor,  # [num_rows + 1] int32
    max_positions: int,
) -> torch.Tensor:
    """See reference.verify_drafts."""
    num_rows = starts.shape[0] - 1
    counts = torch.empty(num_rows, dtype=torch.int32, device=sampled.device)
    verify_drafts_kernel[(num_rows,)](
        counts,
        sampled,
        drafts,
        starts,
        MAX_POSITIONS=next_power_of_2(max(2, max_positions)),
        num_warps=1,
    )
    return counts
