"""Paged attention on a CPU, whose result for a token depends on that token's context alone.

The context is cut into chunks of a fixed number of keys, from position 0. Queries are cut into
tiles of a fixed number of tokens; each (tile, chunk) pair is one entry of a batched call, whose
entries do not depend on each other, and the partial results of a tile are merged chunk by chunk
with the online softmax (Milakov & Gimelshein 2018). So a token meets the same products in the same
order whether it is decoded alone, in a batch, or prefilled in chunks.
Knows nothing about requests. Invariant: no loop over tokens or heads; the loops here are over
chunks of the longest context.
"""

from __future__ import annotations

import torch

from kernels.attention_plan import CpuAttentionPlan, TileGroup
from kernels.chunk_attention import AttentionShape, attend_chunks

# Of a chunk that a query sees nothing of: weight 0 beside any other, and no NaN before the first
# that it sees (-inf minus -inf), as it is where a window has left a tile's first chunk.
HIDDEN_LSE = -1e30


def cpu_paged_attention(
    query: torch.Tensor,  # [num_tokens, num_heads, head_dim]
    key_cache: torch.Tensor,  # [num_blocks, block_size, num_kv_heads, head_dim]
    value_cache: torch.Tensor,  # as key_cache
    plan: CpuAttentionPlan,
) -> torch.Tensor:  # [num_tokens, num_heads, head_dim]
    shape = plan.shape
    if len(plan.groups) == 1 and plan.groups[0].is_whole_batch:
        return _attend_group(query, key_cache, value_cache, plan.groups[0], shape)
    output = torch.empty(query.shape, dtype=query.dtype)
    for group in plan.groups:
        picked = query.index_select(0, group.token_index)
        result = _attend_group(picked, key_cache, value_cache, group, shape)
        output[group.output_index] = result if group.is_token is None else result[group.is_token]
    return output


def _attend_group(
    query: torch.Tensor,  # [num_tiles * tokens_per_tile, num_heads, head_dim]
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    group: TileGroup,
    shape: AttentionShape,
) -> torch.Tensor:
    """As query. Between, a tile's rows are its tokens with the query heads of one key head each."""
    tokens, kv_heads, rows = group.tokens_per_tile, shape.num_kv_heads, shape.group_size
    size = (-1, kv_heads, tokens * rows, shape.head_dim)
    tiles = query.view(-1, tokens, kv_heads, rows, shape.head_dim).transpose(1, 2).reshape(size)
    result = _attend(tiles, key_cache, value_cache, group, shape)
    by_token = result.view(-1, kv_heads, tokens, rows, shape.head_dim).transpose(1, 2)
    return by_token.reshape(-1, shape.num_heads, shape.head_dim)


def _attend(
    tiles: torch.Tensor,  # [num_tiles, num_kv_heads, tile rows, head_dim]
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    group: TileGroup,
    shape: AttentionShape,
) -> torch.Tensor:
    """As tiles: what the tiles' queries see, merged over all their chunks."""
    merged: _OnlineSoftmax | None = None
    for slab in group.slabs:
        # Of one chunk, the pairs are the tiles.
        is_one_chunk = len(slab.num_tiles_of_chunk) == 1
        queries = (
            tiles[: slab.num_tiles_of_chunk[0]]
            if is_one_chunk
            else tiles.index_select(0, slab.tile_of_pair)
        )
        keys = _gather_chunks(key_cache, slab.block_ids, shape)
        values = _gather_chunks(value_cache, slab.block_ids, shape)
        partial, lse = attend_chunks(queries, keys, values, slab.mask)
        if slab.is_hidden is not None:
            lse = lse.masked_fill(slab.is_hidden, HIDDEN_LSE)
        start = 0
        for num_tiles in slab.num_tiles_of_chunk:
            chunk = slice(start, start + num_tiles)
            if merged is None:
                merged = _OnlineSoftmax(partial[chunk], lse[chunk])
            else:
                merged.add(partial[chunk], lse[chunk])
            start += num_tiles
    assert merged is not None, "a tile has one chunk at least"
    return merged.result().to(tiles.dtype)


class _OnlineSoftmax:
    """Partial results of all tiles, weighed by their log-sum-exp; later chunks: the first tiles."""

    def __init__(self, partial: torch.Tensor, lse: torch.Tensor) -> None:
        self._weighted = partial
        self._max = lse
        self._sum: torch.Tensor | None = None  # None: one chunk so far, whose weight is 1

    def add(self, partial: torch.Tensor, lse: torch.Tensor) -> None:
        num_tiles = partial.shape[0]
        if num_tiles < self._max.shape[0]:
            self._add_to_first(num_tiles, partial, lse)
            return
        new_max = torch.maximum(self._max, lse)
        old_weight = torch.exp(self._max - new_max)
        weight = torch.exp(lse - new_max)
        old_sum = old_weight if self._sum is None else self._sum.mul_(old_weight)
        self._sum = old_sum + weight
        self._weighted = (self._weighted * old_weight.unsqueeze(-1)).add_(
            partial * weight.unsqueeze(-1)
        )
        self._max = new_max

    def result(self) -> torch.Tensor:
        if self._sum is None:
            return self._weighted
        return self._weighted / self._sum.unsqueeze(-1)

    def _add_to_first(self, num_tiles: int, partial: torch.Tensor, lse: torch.Tensor) -> None:
        """The same for some of the tiles; the others are done."""
        sums = torch.ones(self._max.shape) if self._sum is None else self._sum
        first = _OnlineSoftmax(self._weighted[:num_tiles], self._max[:num_tiles])
        first._sum = sums[:num_tiles]
        first.add(partial, lse)
        self._weighted = torch.cat([first._weighted, self._weighted[num_tiles:].float()])
        self._max = torch.cat([first._max, self._max[num_tiles:]])
        self._sum = torch.cat([first._sum, sums[num_tiles:]])


def _gather_chunks(
    cache: torch.Tensor, block_ids: torch.Tensor, shape: AttentionShape
) -> torch.Tensor:
    """[num_pairs, num_kv_heads, chunk_keys, head_dim], a view of the gathered blocks."""
    blocks = cache.index_select(0, block_ids)
    chunks = blocks.view(-1, shape.chunk_keys, shape.num_kv_heads, shape.head_dim)
    return chunks.transpose(1, 2)
