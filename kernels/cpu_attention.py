"""Paged attention on a CPU, whose result for a token depends on that token's context alone.

The context is cut into chunks of a fixed number of keys, from position 0. Queries are cut into
tiles of a fixed number of tokens; each (tile, chunk) pair is one entry of a batched call of torch's
flash attention, whose entries do not depend on each other, and the partial results of a tile are
merged chunk by chunk with the online softmax (Milakov & Gimelshein 2018). So a token meets the same
products in the same order whether it is decoded alone, in a batch, or prefilled in chunks.
Knows nothing about requests. Invariant: no loop over tokens or heads; the loops here are over
chunks of the longest context.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch

from kernels.attention_metadata import AttentionMetadata

IntArray = npt.NDArray[np.int64]

CHUNK_KEYS = 128
# Below 64 query rows, torch's flash attention has one path whatever the batch and the threads.
MAX_QUERY_ROWS = 48
# Pairs per call: bounds the memory of gathered keys and values.
MAX_PAIRS = 256
PROBE_SEED = 20
# Private to torch, and the only one that also gives the log-sum-exp on a CPU.
try:
    FLASH_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
except AttributeError:
    FLASH_ATTENTION = None


@dataclass(slots=True, frozen=True)
class AttentionShape:
    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype

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


@dataclass(slots=True, frozen=True)
class _Slab:
    """Consecutive chunks, computed in one call. Pairs: chunk by chunk, tiles in order."""

    tile_of_pair: torch.Tensor  # [num_pairs] int64
    block_ids: torch.Tensor  # [num_pairs * blocks_per_chunk] int64
    mask: torch.Tensor  # [num_pairs, 1, tile rows or 1, chunk_keys], 0 or -inf
    is_hidden: torch.Tensor | None  # [num_pairs, 1, tile rows]: sees no key of the chunk
    num_tiles_of_chunk: list[int]


@dataclass(slots=True, frozen=True)
class _TileGroup:
    """Tiles of one size, those with the most chunks first."""

    tokens_per_tile: int
    token_index: torch.Tensor  # [num_tiles * tokens_per_tile] int64, the last token repeated
    is_token: torch.Tensor | None  # [num_tiles * tokens_per_tile] bool; None: all are
    output_index: torch.Tensor  # [num tokens of the group] int64
    is_whole_batch: bool  # the tiles are the batch's tokens, each once and in order
    slabs: list[_Slab]


@dataclass(slots=True, frozen=True)
class CpuAttentionPlan:
    """What all layers of a step share."""

    shape: AttentionShape
    groups: list[_TileGroup]


def plan_cpu_attention(metadata: AttentionMetadata, shape: AttentionShape) -> CpuAttentionPlan:
    tile_tokens = choose_tile_tokens(shape, torch.get_num_threads())
    num_queries = metadata.cu_seqlens_q.numpy()[1:] - metadata.cu_seqlens_q.numpy()[:-1]
    is_single = num_queries == 1
    groups = [
        _plan_group(metadata, shape, rows, tokens)
        for rows, tokens in (
            (np.flatnonzero(is_single), tile_tokens.single),
            (np.flatnonzero(~is_single), tile_tokens.many),
        )
        if len(rows)
    ]
    return CpuAttentionPlan(shape, groups)


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
    group: _TileGroup,
    shape: AttentionShape,
) -> torch.Tensor:
    """As query. Between, a tile's rows are its tokens with the query heads of one key head each."""
    tokens, kv_heads, rows = group.tokens_per_tile, shape.num_kv_heads, shape.group_size
    tiles = query.unflatten(1, (kv_heads, rows))
    if tokens > 1:
        tiles = tiles.unflatten(0, (-1, tokens)).transpose(1, 2).flatten(2, 3)
    result = _attend(tiles, key_cache, value_cache, group, shape)
    if tokens > 1:
        result = result.unflatten(2, (tokens, rows)).transpose(1, 2).flatten(0, 1)
    return result.reshape(-1, shape.num_heads, shape.head_dim)


def _attend(
    tiles: torch.Tensor,  # [num_tiles, num_kv_heads, tile rows, head_dim]
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    group: _TileGroup,
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
        partial, lse = _attend_chunks(queries, keys, values, slab.mask)
        if slab.is_hidden is not None:
            lse = lse.masked_fill(slab.is_hidden, -math.inf)
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
        self._first = partial
        self._max = lse
        self._sum: torch.Tensor | None = None
        self._weighted = partial

    def add(self, partial: torch.Tensor, lse: torch.Tensor) -> None:
        if self._sum is None:
            self._max = self._max.contiguous()
            self._sum = torch.ones_like(self._max)
            # A copy in any case: it is changed below.
            self._weighted = self._first.to(torch.float32, copy=True)
        n = partial.shape[0]
        new_max = torch.maximum(self._max[:n], lse)
        old_weight = torch.exp(self._max[:n] - new_max)
        weight = torch.exp(lse - new_max)
        self._sum[:n].mul_(old_weight).add_(weight)
        self._weighted[:n].mul_(old_weight.unsqueeze(-1)).add_(partial * weight.unsqueeze(-1))
        self._max[:n] = new_max

    def result(self) -> torch.Tensor:
        if self._sum is None:
            return self._first
        return self._weighted / self._sum.unsqueeze(-1)


def _gather_chunks(
    cache: torch.Tensor, block_ids: torch.Tensor, shape: AttentionShape
) -> torch.Tensor:
    """[num_pairs, num_kv_heads, chunk_keys, head_dim], a view of the gathered blocks."""
    blocks = cache.index_select(0, block_ids)
    chunks = blocks.view(-1, shape.chunk_keys, shape.num_kv_heads, shape.head_dim)
    return chunks.transpose(1, 2)


def _attend_chunks(
    queries: torch.Tensor,  # [num_pairs, num_kv_heads, tile rows, head_dim]
    keys: torch.Tensor,  # [num_pairs, num_kv_heads, chunk_keys, head_dim]
    values: torch.Tensor,  # as keys
    mask: torch.Tensor,  # [num_pairs, 1, tile rows or 1, chunk_keys]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention within each pair, and the log-sum-exp of its scores [pairs, kv heads, rows]."""
    mask = mask.expand(-1, -1, queries.shape[2], -1)
    if FLASH_ATTENTION is None:
        return _attend_chunks_plainly(queries, keys, values, mask)
    output, lse = FLASH_ATTENTION(queries, keys, values, 0.0, False, attn_mask=mask)
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


def _plan_group(
    metadata: AttentionMetadata, shape: AttentionShape, rows: IntArray, tokens_per_tile: int
) -> _TileGroup:
    starts = metadata.cu_seqlens_q.numpy()[rows].astype(np.int64)
    ends = metadata.cu_seqlens_q.numpy()[rows + 1].astype(np.int64)
    # Position of a row's token t is t + shift.
    shifts = metadata.seq_lens.numpy()[rows] - ends
    num_tiles = -(-(ends - starts) // tokens_per_tile)
    row_of_tile = np.repeat(np.arange(len(rows)), num_tiles)
    first_tile = np.cumsum(num_tiles) - num_tiles
    tile_in_row = np.arange(len(row_of_tile)) - first_tile[row_of_tile]
    first_token = starts[row_of_tile] + tile_in_row * tokens_per_tile
    last_token = np.minimum(first_token + tokens_per_tile, ends[row_of_tile]) - 1
    num_chunks = (last_token + shifts[row_of_tile]) // shape.chunk_keys + 1

    order = np.argsort(-num_chunks, kind="stable")
    row_of_tile, num_chunks = row_of_tile[order], num_chunks[order]
    unclamped = first_token[order, None] + np.arange(tokens_per_tile)
    token_index = np.minimum(unclamped, last_token[order, None])
    is_token = unclamped <= last_token[order, None]
    return _TileGroup(
        tokens_per_tile=tokens_per_tile,
        token_index=torch.from_numpy(token_index.reshape(-1)),
        is_token=None if is_token.all() else torch.from_numpy(is_token.reshape(-1)),
        output_index=torch.from_numpy(token_index[is_token]),
        is_whole_batch=np.array_equal(
            token_index.reshape(-1), np.arange(metadata.slot_mapping.shape[0])
        ),
        slabs=_plan_slabs(
            metadata.block_tables.numpy()[rows][row_of_tile],
            token_index + shifts[row_of_tile, None],
            num_chunks,
            shape,
        ),
    )


def _plan_slabs(
    block_tables: npt.NDArray[np.int32],  # [num_tiles, max_num_blocks]
    positions: IntArray,  # [num_tiles, tokens_per_tile]
    num_chunks: IntArray,  # [num_tiles] descending
    shape: AttentionShape,
) -> list[_Slab]:
    max_chunks = int(num_chunks[0])
    blocks_per_chunk = shape.chunk_keys // shape.block_size
    missing = max_chunks * blocks_per_chunk - block_tables.shape[1]
    # Behind the table stands block 0: its keys are masked.
    padded = np.pad(block_tables, ((0, 0), (0, max(0, missing))))
    chunked = padded[:, : max_chunks * blocks_per_chunk].reshape(
        len(num_chunks), max_chunks, blocks_per_chunk
    )
    tiles_of_chunk = (num_chunks > np.arange(max_chunks)[:, None]).sum(axis=1).tolist()
    slabs: list[_Slab] = []
    for first, last in _slab_bounds(tiles_of_chunk):
        counts = tiles_of_chunk[first:last]
        tiles = np.concatenate([np.arange(count) for count in counts])
        chunks = np.repeat(np.arange(first, last), counts)
        first_keys = chunks * shape.chunk_keys
        key_positions = first_keys[:, None] + np.arange(shape.chunk_keys)
        query_positions = positions[tiles]
        is_hidden = query_positions < first_keys[:, None]  # [num_pairs, tokens_per_tile]
        slabs.append(
            _Slab(
                tile_of_pair=torch.from_numpy(tiles),
                block_ids=torch.from_numpy(chunked[tiles, chunks].reshape(-1).astype(np.int64)),
                mask=_mask(query_positions, key_positions, shape),
                is_hidden=_by_query_rows(torch.from_numpy(is_hidden), shape).unsqueeze(1)
                if is_hidden.any()
                else None,
                num_tiles_of_chunk=counts,
            )
        )
    return slabs


def _slab_bounds(tiles_of_chunk: list[int]) -> list[tuple[int, int]]:
    """Ranges of chunks with at most MAX_PAIRS pairs together, or one chunk."""
    bounds: list[tuple[int, int]] = []
    first, num_pairs = 0, 0
    for chunk, count in enumerate(tiles_of_chunk):
        if chunk > first and num_pairs + count > MAX_PAIRS:
            bounds.append((first, chunk))
            first, num_pairs = chunk, 0
        num_pairs += count
    bounds.append((first, len(tiles_of_chunk)))
    return bounds


def _mask(
    query_positions: IntArray, key_positions: IntArray, shape: AttentionShape
) -> torch.Tensor:
    """[num_pairs, 1, tile rows (1 where all are of one token), chunk_keys], 0 or -inf."""
    is_hidden = torch.from_numpy(key_positions[:, None, :] > query_positions[:, :, None])
    mask = torch.zeros(is_hidden.shape, dtype=shape.dtype).masked_fill_(is_hidden, -math.inf)
    if query_positions.shape[1] > 1:
        mask = _by_query_rows(mask, shape)
    return mask.unsqueeze(1)


def _by_query_rows(by_token: torch.Tensor, shape: AttentionShape) -> torch.Tensor:
    """[num_pairs, tokens_per_tile, …] -> [num_pairs, tile rows, …]: a row per token and head."""
    return by_token.repeat_interleave(shape.group_size, dim=1)


@lru_cache(maxsize=64)
def choose_tile_tokens(shape: AttentionShape, num_threads: int) -> TileTokens:
    """Small tiles for single queries where they give the bits of large ones. Tried, not assumed."""
    many = max(1, MAX_QUERY_ROWS // shape.group_size)
    probe = _probe(shape, many * shape.group_size)
    expected = _attend_chunks(*probe)
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
            output, lse = _attend_chunks(few[0][:, :, order], few[1], few[2], few[3])
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
