"""What the model runner asks of a model; each architecture in the registry keeps to it.

Knows nothing about requests, steps or sampling. Invariant: `forward` writes the keys and values of
all tokens of a layer before any token attends in it, since a row may read blocks that another row
of the same step fills.
"""

from __future__ import annotations

from typing import Protocol

import torch

from executor_svc.kv_cache import KVCache, KVCacheSpec
from kernels import AttentionMetadata, AttentionShape, RowExactLinear


class CausalLM(Protocol):
    @property
    def vocab_size(self) -> int: ...

    @property
    def max_model_len(self) -> int:
        """Longest context that the model was made for; 0: no limit."""
        ...

    @property
    def kv_cache_spec(self) -> KVCacheSpec: ...

    def forward(
        self,
        input_ids: torch.Tensor,  # [num_tokens] int64
        positions: torch.Tensor,  # [num_tokens] int64
        kv_cache: KVCache,
        metadata: AttentionMetadata,
    ) -> torch.Tensor:
        """Hidden states [num_tokens, hidden_size], after the last norm."""
        ...

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Logits [num_samples, vocab_size], of the rows that sample only. In the model's dtype: a
        vocabulary is long, and most rows ask for no more than its largest."""
        ...

    def products(self) -> dict[str, RowExactLinear]:
        """One of each shape, by name, for the self-check."""
        ...

    def attention_shape(self, block_size: int) -> AttentionShape | None:
        """None: it attends in a way of its own."""
        ...
