"""What a layer has to know about the mixed batch of a step; passed as an argument, never a global.

Knows nothing about requests. Invariant: row r owns the tokens cu_seqlens_q[r] : cu_seqlens_q[r + 1]
of the flat batch, which are the last ones of its seq_lens[r] tokens of context.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(slots=True, frozen=True)
class AttentionMetadata:
    """Rows are requests, tokens are flat over all rows, in the decided order of the plan."""

    cu_seqlens_q: torch.Tensor  # [num_rows + 1] int32
    seq_lens: torch.Tensor  # [num_rows] int32, context length with this step's tokens
    block_tables: torch.Tensor  # [num_rows, max_num_blocks] int32, 0 behind a row's last block
    slot_mapping: torch.Tensor  # [num_tokens] int64, block_id * block_size + offset
    max_seqlen_q: int
    max_seqlen_k: int
