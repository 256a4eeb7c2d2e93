"""What all layers of a step share, for our compiled attention: the metadata as it is.

Knows no model. Invariant: the tensors that it was made of are not changed while it lives.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.attention_metadata import AttentionMetadata
from kernels.chunk_attention import AttentionShape
from kernels.native.library import NativeKernels


@dataclass(slots=True, frozen=True)
class NativeAttentionPlan:
    shape: AttentionShape
    kernels: NativeKernels
    batch: tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # int32, see AttentionMetadata

    @classmethod
    def of(
        cls, metadata: AttentionMetadata, shape: AttentionShape, kernels: NativeKernels
    ) -> NativeAttentionPlan:
        parts = (metadata.cu_seqlens_q, metadata.seq_lens, metadata.block_tables)
        cu_seqlens_q, seq_lens, block_tables = (part.int().contiguous() for part in parts)
        return cls(shape, kernels, (cu_seqlens_q, seq_lens, block_tables))

    def attend(
        self, query: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor
    ) -> torch.Tensor:
        """See reference.paged_attention."""
        return self.kernels.paged_attention(
            query, key_cache, value_cache, self.batch, self.shape.window
        )
