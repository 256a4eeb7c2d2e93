"""One layer's self-attention over the paged cache.

Knows its weights and the step's attention plan, no request. Invariant: the keys and values of all
tokens of the batch are written before any token attends.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels import (
    AttentionPlan,
    RowExactLinear,
    paged_attention,
    rms_norm,
    rotary_and_cache,
)


@dataclass(slots=True, frozen=True)
class HeadNorms:
    """Norms of each head of the queries and of the keys, before they are rotated."""

    query: torch.Tensor  # [head_dim]
    key: torch.Tensor
    eps: float


@dataclass(slots=True, frozen=True)
class AttentionInput:
    """What the attention of every layer gets in one step."""

    cos: torch.Tensor  # [num_tokens, 1, head_dim]
    sin: torch.Tensor
    slot_mapping: torch.Tensor  # [num_tokens]
    plan: AttentionPlan


class Attention:
    def __init__(
        self,
        qkv_projection: RowExactLinear,
        out_projection: RowExactLinear,
        num_heads: int,
        head_dim: int,
        head_norms: HeadNorms | None = None,
    ) -> None:
        self._qkv_projection = qkv_projection
        self._out_projection = out_projection
        self._num_heads = num_heads
        self._head_dim = head_dim
        self._head_norms = head_norms

    def __call__(
        self,
        hidden_states: torch.Tensor,  # [num_tokens, hidden_size]
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        step: AttentionInput,
    ) -> torch.Tensor:
        num_tokens = hidden_states.shape[0]
        # [num_tokens, num_heads + 2 * num_kv_heads, head_dim]
        qkv = self._qkv_projection(hidden_states).view(num_tokens, -1, self._head_dim)
        qkv = self._normed(qkv)
        query = rotary_and_cache(
            qkv, (step.cos, step.sin), (key_cache, value_cache), step.slot_mapping
        )
        output = paged_attention(query, key_cache, value_cache, step.plan)
        return self._out_projection(output.view(num_tokens, -1))

    def _normed(self, qkv: torch.Tensor) -> torch.Tensor:
        """With the heads of queries and keys normed; values as they are."""
        norms = self._head_norms
        if norms is None:
            return qkv
        num_kv_heads = (qkv.shape[1] - self._num_heads) // 2
        sizes = [self._num_heads, num_kv_heads, num_kv_heads]
        queries, keys, values = qkv.split(sizes, dim=1)
        normed = [
            rms_norm(part.reshape(-1, self._head_dim), weight, norms.eps).view(part.shape)
            for part, weight in ((queries, norms.query), (keys, norms.key))
        ]
        return torch.cat([*normed, values], dim=1)

    @property
    def has_head_norms(self) -> bool:
        return self._head_norms is not None

    def products(self) -> dict[str, RowExactLinear]:
        return {"qkv_projection": self._qkv_projection, "out_projection": self._out_projection}
