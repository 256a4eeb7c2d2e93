"""Cuts the mixed batch of a step into tiles of queries and chunks of keys, with no loop over them.

Knows positions and block tables, no tensor of a model. Invariant: which chunks a token meets, and
in which order, depends on its position alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from kernels.attention_metadata import AttentionMetadata
from kernels.chunk_attention import AttentionShape, choose_tile_tokens
from kernels.numpy_bridge import as_tensor

IntArray = npt.NDArray[np.int64]

# Pairs per call: bounds the memory of gathered keys and values.
MAX_PAIRS = 256


@dataclass(slots=True, frozen=True)
class Slab:
    """Consecutive chunks, computed in one call. Pairs: chunk by chunk, tiles in order."""

    tile_of_pair: torch.Tensor  # [num_pairs] int64
    block_ids: torch.Tensor  # [num_pairs * blocks_per_chunk] int64
    mask: torch.Tensor  # [num_pairs, 1, tile rows or 1, chunk_keys], 0 or -inf
    is_hidden: torch.Tensor | None  # [num_pairs, 1, tile rows]: sees no key of the chunk
    num_tiles_of_chunk: list[int]


@dataclass(slots=True, frozen=True)
class TileGroup:
    """Tiles of one size, those with the most chunks first."""

    tokens_per_tile: int
    token_index: torch.Tensor  # [num_tiles * tokens_per_tile] int64, the last token repeated
    is_token: torch.Tensor | None  # [num_tiles * tokens_per_tile] bool; None: all are
    output_index: torch.Tensor  # [num tokens of the group] int64
    is_whole_batch: bool  # the tiles are the batch's tokens, each once and in order
    slabs: list[Slab]


@dataclass(slots=True, frozen=True)
class CpuAttentionPlan:
    """What all layers of a step share."""

    shape: AttentionShape
    groups: list[TileGroup]


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


def _plan_group(
    metadata: AttentionMetadata, shape: AttentionShape, rows: IntArray, tokens_per_tile: int
) -> TileGroup:
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
    first_chunk = _first_seen(first_token + shifts[row_of_tile], shape) // shape.chunk_keys
    num_chunks = (last_token + shifts[row_of_tile]) // shape.chunk_keys + 1 - first_chunk

    order = np.argsort(-num_chunks, kind="stable")
    row_of_tile, num_chunks = row_of_tile[order], num_chunks[order]
    unclamped = first_token[order, None] + np.arange(tokens_per_tile)
    token_index = np.minimum(unclamped, last_token[order, None])
    is_token = unclamped <= last_token[order, None]
    return TileGroup(
        tokens_per_tile=tokens_per_tile,
        token_index=as_tensor(token_index.reshape(-1)),
        is_token=None if is_token.all() else as_tensor(is_token.reshape(-1)),
        output_index=as_tensor(token_index[is_token]),
        is_whole_batch=np.array_equal(
            token_index.reshape(-1), np.arange(metadata.slot_mapping.shape[0])
        ),
        slabs=_plan_slabs(
            metadata.block_tables.numpy()[rows][row_of_tile],
            token_index + shifts[row_of_tile, None],
            _Chunks(first_chunk[order], num_chunks),
            shape,
        ),
    )


@dataclass(slots=True, frozen=True)
class _Chunks:
    """Which chunks of keys each tile meets; those with the most first."""

    first: IntArray  # [num_tiles]
    count: IntArray  # [num_tiles] descending


def _first_seen(positions: IntArray, shape: AttentionShape) -> IntArray:
    """The first position that queries at these see."""
    if not shape.window:
        return np.zeros_like(positions)
    return np.maximum(positions - shape.window + 1, 0)


def _plan_slabs(
    block_tables: npt.NDArray[np.int32],  # [num_tiles, max_num_blocks]
    positions: IntArray,  # [num_tiles, tokens_per_tile]
    of_tiles: _Chunks,
    shape: AttentionShape,
) -> list[Slab]:
    max_chunks = int(of_tiles.count[0])
    table_chunks = int((of_tiles.first + of_tiles.count).max())
    blocks_per_chunk = shape.chunk_keys // shape.block_size
    missing = table_chunks * blocks_per_chunk - block_tables.shape[1]
    # Behind the table stands block 0: its keys are masked.
    padded = np.pad(block_tables, ((0, 0), (0, max(0, missing))))
    chunked = padded[:, : table_chunks * blocks_per_chunk].reshape(
        len(of_tiles.count), table_chunks, blocks_per_chunk
    )
    # Which of a tile's chunks, counted from its first: [max_chunks, num_tiles].
    is_in_chunk = of_tiles.count > np.arange(max_chunks)[:, None]
    tiles_of_chunk = [int(count) for count in is_in_chunk.sum(axis=1)]
    slabs: list[Slab] = []
    for first, last in _slab_bounds(tiles_of_chunk):
        counts = tiles_of_chunk[first:last]
        tiles: IntArray = np.concatenate([np.arange(count, dtype=np.int64) for count in counts])
        chunks = of_tiles.first[tiles] + np.repeat(np.arange(first, last), counts)
        first_keys = chunks * shape.chunk_keys
        key_positions = first_keys[:, None] + np.arange(shape.chunk_keys)
        query_positions = positions[tiles]
        last_keys = first_keys + shape.chunk_keys - 1
        # [num_pairs, tokens_per_tile]
        is_hidden = query_positions < first_keys[:, None]
        is_hidden |= _first_seen(query_positions, shape) > last_keys[:, None]
        slabs.append(
            Slab(
                tile_of_pair=as_tensor(tiles),
                block_ids=as_tensor(chunked[tiles, chunks].reshape(-1).astype(np.int64)),
                mask=_mask(query_positions, key_positions, shape),
                is_hidden=_by_query_rows(as_tensor(is_hidden), shape).unsqueeze(1)
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
    keys = key_positions[:, None, :]
    is_hidden = keys > query_positions[:, :, None]
    if shape.window:
        is_hidden |= keys < _first_seen(query_positions, shape)[:, :, None]
    hidden = as_tensor(is_hidden)
    mask = torch.zeros(hidden.shape, dtype=shape.dtype).masked_fill_(hidden, -math.inf)
    if query_positions.shape[1] > 1:
        mask = _by_query_rows(mask, shape)
    return mask.unsqueeze(1)


def _by_query_rows(by_token: torch.Tensor, shape: AttentionShape) -> torch.Tensor:
    """[num_pairs, tokens_per_tile, …] -> [num_pairs, tile rows, …]: a row per token and head."""
    return by_token.repeat_interleave(shape.group_size, dim=1)
