"""A model that can be worked out by hand: it reads every token of the context through the cache.

It has no weights. A KV slot holds its token id; the token with the highest logit is the sum of
(p + 1) * token(p) over all positions p of the context, mod 256. Invariant: the sum comes from the
block table alone, so a wrong slot, a lost write or a stale block gives wrong text.
"""

from __future__ import annotations

import torch

from executor_svc.kv_cache import KVCache, KVCacheSpec
from kernels import AttentionMetadata, AttentionShape, RowExactLinear

NUM_BYTES = 256
# Never drawn, but a logit bias can reach it, so that a test can end a request.
SPECIAL_TOKEN_LOGIT = -30.0
LOGIT_STEP = 0.25


class HandModel:
    """Bytes are its tokens; the logits of others fall off with the distance from the highest."""

    def __init__(self, vocab_size: int = 259, max_model_len: int = 0) -> None:
        if vocab_size < NUM_BYTES:
            raise ValueError(f"the hand model needs a vocabulary of {NUM_BYTES} at least")
        self.vocab_size = vocab_size
        self.max_model_len = max_model_len
        self.kv_cache_spec = KVCacheSpec(1, 1, 1, torch.int32)

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        kv_cache: KVCache,
        metadata: AttentionMetadata,
    ) -> torch.Tensor:
        """[num_tokens, 1] int64: the greedy next token behind each token."""
        slots = kv_cache.key(0).view(-1)  # [num_blocks * block_size]
        slots[metadata.slot_mapping] = input_ids.to(slots.dtype)

        num_queries = metadata.cu_seqlens_q.diff().long()
        row_of_token = torch.repeat_interleave(torch.arange(len(num_queries)), num_queries)
        context = torch.arange(metadata.max_seqlen_k)
        block_size = kv_cache.block_size
        block_ids = metadata.block_tables.long()[:, context // block_size]
        token_ids = slots[block_ids * block_size + context % block_size].long()  # [rows, context]
        sums = torch.cumsum(token_ids * (context + 1), dim=1)
        return (sums[row_of_token, positions] % NUM_BYTES).unsqueeze(1)

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        distance = (torch.arange(NUM_BYTES) - hidden_states) % NUM_BYTES
        logits = torch.full((len(hidden_states), self.vocab_size), SPECIAL_TOKEN_LOGIT)
        logits[:, :NUM_BYTES] = distance * -LOGIT_STEP
        return logits

    def products(self) -> dict[str, RowExactLinear]:
        return {}

    def attention_shape(self, block_size: int) -> AttentionShape | None:
        return None
