"""Chooses, once per step and without asking the device, how its attention is launched.

Knows shapes and numbers that the host has; reads no tensor. Invariant: with `is_batch_invariant`
the choice depends on the model's shape alone, so a token meets the same tiles in any batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from kernels.attention_metadata import AttentionMetadata
from kernels.chunk_attention import AttentionShape

MIN_DOT_ROWS = 16  # fewer rows do not fill the smallest tensor core instruction
PROGRAMS_PER_PROCESSOR = 4
MAX_SPLITS = 32
# Below this many keys for each split, the second pass costs more than the first one saves.
MIN_KEYS_PER_SPLIT = 256
DEFAULT_PROCESSORS = 132


@dataclass(slots=True, frozen=True)
class TileShape:
    """Rows of a tile are its tokens with the query heads of one key head each, these rounded up to
    a power of 2: dividing by it costs no register, and the other rows would stay empty anyway."""

    block_m: int  # rows of queries
    block_n: int  # keys at a time
    num_warps: int
    num_stages: int

    def tokens(self, shape: AttentionShape) -> int:
        return self.block_m // next_power_of_2(shape.group_size)


@dataclass(slots=True, frozen=True)
class TritonAttentionPlan:
    """What all layers of a step share. The metadata is on the device."""

    shape: AttentionShape
    metadata: AttentionMetadata
    tile: TileShape
    num_splits: int  # 1: every program sees all keys of its tile

    def constants(self) -> dict[str, int | float]:
        """What both kernels are compiled for."""
        return attention_constants(self.shape, self.tile)


def plan_triton_attention(
    metadata: AttentionMetadata, shape: AttentionShape
) -> TritonAttentionPlan:
    is_decode = metadata.max_seqlen_q == 1
    tile = choose_tile(shape, is_decode and not shape.is_batch_invariant)
    num_splits = 1
    if is_decode and not shape.is_batch_invariant and not shape.window:
        num_rows = metadata.seq_lens.shape[0]
        processors = num_processors(metadata.seq_lens.device)
        num_splits = choose_splits(shape, num_rows, metadata.max_seqlen_k, processors)
    return TritonAttentionPlan(shape, metadata, tile, num_splits)


def attention_constants(shape: AttentionShape, tile: TileShape) -> dict[str, int | float]:
    return {
        "HEAD_DIM": shape.head_dim,
        "PADDED_DIM": next_power_of_2(shape.head_dim),
        "GROUP_SIZE": shape.group_size,
        "BLOCK_SIZE": shape.block_size,
        "SLOT_STRIDE": shape.num_kv_heads * shape.head_dim,
        "BLOCK_N": tile.block_n,
        "SCALE": 1.0 / math.sqrt(shape.head_dim),
        "SOFT_CAP": shape.soft_cap,
        "WINDOW": shape.window,
    }


def choose_tile(shape: AttentionShape, is_decode: bool) -> TileShape:
    """So that the accumulator, the scores and two stages of keys and values fit. Not timed."""
    padded_dim = max(64, next_power_of_2(shape.head_dim))
    smallest = max(MIN_DOT_ROWS, next_power_of_2(shape.group_size))
    if shape.dtype == torch.float32:  # no tensor cores: registers are what is short
        return TileShape(smallest, 32 if padded_dim <= 64 else 16, 4, 1)
    if is_decode:  # as many bytes under way as there is room for
        block_n = {64: 128, 128: 64}.get(padded_dim, 32)
        return TileShape(smallest, block_n, 4, 3 if padded_dim <= 128 else 2)
    if padded_dim <= 128:
        return TileShape(max(128, smallest), 64, 8, 2)
    return TileShape(max(64, smallest), 32, 8, 2)


def choose_splits(shape: AttentionShape, num_rows: int, max_seqlen_k: int, processors: int) -> int:
    """Enough programs for the device, a power of 2; each row's keys are cut in so many parts."""
    wanted = processors * PROGRAMS_PER_PROCESSOR // max(1, num_rows * shape.num_kv_heads)
    useful = max_seqlen_k // MIN_KEYS_PER_SPLIT
    num_splits = 1
    while num_splits * 2 <= min(wanted, useful, MAX_SPLITS):
        num_splits *= 2
    return num_splits


def num_processors(device: torch.device) -> int:
    if device.type != "cuda":
        return DEFAULT_PROCESSORS
    untyped_cuda: Any = torch.cuda
    return int(untyped_cuda.get_device_properties(device).multi_processor_count)


def next_power_of_2(number: int) -> int:
    return 1 << (number - 1).bit_length()
