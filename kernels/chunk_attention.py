"""Attention of a batch of (tile, chunk) pairs that know nothing of each other, with torch's kernel.

Knows no cache and no position: a mask says what a query sees. Invariant: a query's result has the
same bits whichever queries and pairs stand beside it, for the numbers of query rows that
`choose_tile_tokens` has tried.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

CHUNK_KEYS = 128
# Below 64 query rows, torch's flash attention has one path whatever the batch and the threads.
MAX_QUERY_ROWS = 48
PROBE_SEED = 20


def _find_flash_attention() -> Any:
    """Private to torch, and the only one that also gives the log-sum-exp on a CPU. None: absent."""
    try:
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    except AttributeError:
        return None


flash_attention = _find_flash_attention()


@dataclass(slots=True, frozen=True)
class AttentionShape:
    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype
    window: int = 0  # how many positions a query sees, its own included; 0: all up to it
    soft_cap: float = 0.0  # scores stay within ±soft_cap; 0: no limit
    is_batch_invariant: bool = False  # on a GPU; a CPU is always

    @property
    def group_size(self) -> int:
        return self.num_heads // self.num_kv_heads

    @property
    def chunk_keys(self) -> int:
        """Whole blocks, and CHUNK_KEYS where that is a multiple of them."""
        return self.block_size * max(1, CHUNK_KEYS // self.block_size)


@dataclass(slots=True, frozen=True)
class TileTokens:
    """Tokens per tile for rows with one query and for rows with more."""

    single: int
    many: int
    is_exact: bool  # both give a token the same bits


def attend_chunks(
    queries: torch.Tensor,  # [num_pairs, num_kv_heads, tile rows, head_dim]
    keys: torch.Tensor,  # [num_pairs, num_kv_heads, chunk_keys, head_dim]
    values: torch.Tensor,  # as keys
    mask: torch.Tensor,  # [num_pairs, 1, tile rows or 1, chunk_keys]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention within each pair, and the log-sum-exp of its scores [pairs, kv heads, rows]."""
    mask = mask.expand(-1, -1, queries.shape[2], -1)
    if flash_attention is None:
        return _attend_chunks_plainly(queries, keys, values, mask)
    output, lse = flash_attention(queries, keys, values, 0.0, False, attn_mask=mask)
    return output, lse


def _attend_chunks_plainly(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same where torch lacks its flash attention. A hidden query gives 0, not NaN."""
    scores = queries.float() @ keys.float().transpose(2, 3) / math.sqrt(queries.shape[3])
    scores = scores + mask
    highest = scores.amax(dim=-1, keepdim=True).clamp_min(torch.finfo(torch.float32).min)
    weights = torch.exp(scores - highest)
    total = weights.sum(dim=-1, keepdim=True)
    output = (weights @ values.float()) / total.clamp_min(torch.finfo(torch.float32).tiny)
    lse = (highest + torch.log(total)).squeeze(-1)
    return output.to(queries.dtype), lse


@lru_cache(maxsize=64)
def choose_tile_tokens(shape: AttentionShape, num_threads: int) -> TileTokens:
    """Small tiles for single queries where they give the bits of large ones. Tried, not assumed."""
    many = max(1, MAX_QUERY_ROWS // shape.group_size)
    probe = _probe(shape, many * shape.group_size)
    expected = attend_chunks(*probe)
    tokens = 1
    while tokens < many:
        if _has_same_bits(probe, expected, tokens * shape.group_size):
            return TileTokens(tokens, many, is_exact=True)
        tokens *= 2
    return TileTokens(many, many, is_exact=_has_same_bits(probe, expected, many * shape.group_size))


_Pairs = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def _has_same_bits(
    probe: _Pairs, expected: tuple[torch.Tensor, torch.Tensor], num_rows: int
) -> bool:
    """Of the first rows: alone, in reverse order, and with fewer pairs."""
    queries, keys, values, mask = probe
    for num_pairs in (queries.shape[0], 1):
        few = [part[:num_pairs] for part in (queries[:, :, :num_rows], keys, values, mask)]
        for order in (torch.arange(num_rows), torch.arange(num_rows - 1, -1, -1)):
            output, lse = attend_chunks(few[0][:, :, order], few[1], few[2], few[3])
            if not torch.equal(output, expected[0][:num_pairs][:, :, order]):
                return False
            if not torch.equal(lse, expected[1][:num_pairs][:, :, order]):
                return False
    return True


def _probe(shape: AttentionShape, num_rows: int) -> _Pairs:
    """Scores and results that are nothing but rounding, so that the order of sums shows."""
    generator = torch.Generator().manual_seed(PROBE_SEED)
    num_pairs, heads, dim, keys = 3, shape.num_kv_heads, shape.head_dim, shape.chunk_keys
    dim_order = torch.randperm(dim, generator=generator)
    key_order = torch.randperm(keys, generator=generator)

    def random(*size: int) -> torch.Tensor:
        exponents = torch.randint(-10, 11, size, generator=generator)
        return torch.randn(size, generator=generator) * 2.0**exponents

    def mirrored(values: torch.Tensor, sign: float, dimension: int, size: int) -> torch.Tensor:
        rest_size = list(values.shape)
        rest_size[dimension] = size - 2 * values.shape[dimension]
        return torch.cat([values, sign * values, torch.zeros(rest_size)], dim=dimension)

    queries = mirrored(random(num_pairs, heads, num_rows, dim // 2) * 100.0, -1.0, 3, dim)
    half_keys = mirrored(random(num_pairs, heads, keys // 2, dim // 2) / 100.0, 1.0, 3, dim)
    half_values = random(num_pairs, heads, keys // 2, dim)
    all_keys = mirrored(half_keys, 1.0, 2, keys)[:, :, key_order][..., dim_order]
    all_values = mirrored(half_values, -1.0, 2, keys)[:, :, key_order]
    mask = torch.zeros(num_pairs, 1, 1, keys, dtype=shape.dtype)
    return (
        queries[..., dim_order].to(shape.dtype).contiguous(),
        all_keys.to(shape.dtype).contiguous(),
        all_values.to(shape.dtype).contiguous(),
        mask,
    )
