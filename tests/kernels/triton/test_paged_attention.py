"""The mixed kernel against the reference: ragged rows, scattered blocks, NaN all around."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels import AttentionShape
from kernels.triton.attention_plan import TileShape, TritonAttentionPlan, plan_triton_attention
from kernels.triton.paged_attention import paged_attention
from tests.kernels.paged_cache import PagedCache
from tests.kernels.triton_device import DEVICE, DTYPES, assert_agrees

# A decode, a prefill, a chunk behind a prefix, a decode at a block's edge.
ROWS = [(1, 37), (19, 19), (5, 41), (1, 48)]
# (num_heads, num_kv_heads, head_dim, block_size); 80 is no power of 2, nor is a group of 3.
SHAPES = [(4, 2, 64, 16), (3, 1, 80, 32), (2, 2, 256, 48)]


def attend(cache: PagedCache, tile: TileShape | None = None) -> torch.Tensor:
    plan = plan_triton_attention(cache.metadata, cache.shape)
    if tile is not None:
        plan = replace(plan, tile=tile)
    assert plan.num_splits == 1
    return paged_attention(cache.query, cache.keys, cache.values, plan).cpu()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_mixed_batches(shape: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    cache = PagedCache(AttentionShape(*shape, dtype), ROWS)
    assert_agrees(attend(cache), cache.expected())


@pytest.mark.parametrize(("window", "soft_cap"), [(1, 0.0), (7, 0.0), (20, 2.5), (0, 1.5)])
def test_window_and_soft_cap(window: int, soft_cap: float) -> None:
    """Blocks in front of the window belong to somebody else by now: they are NaN here."""
    shape = AttentionShape(4, 2, 64, 16, torch.float32, window=window, soft_cap=soft_cap)
    cache = PagedCache(shape, ROWS)
    expected = cache.expected()
    if window:
        for row, (num_queries, context) in enumerate(ROWS):
            num_unseen = max(0, context - num_queries - window + 1) // shape.block_size
            for block_id in cache.metadata.block_tables[row, :num_unseen].tolist():
                cache.keys[block_id] = cache.values[block_id] = float("nan")
    assert_agrees(attend(cache), expected)


def test_rows_that_fill_up_a_recorded_batch() -> None:
    """They have no token and no context, and nothing comes of them."""
    cache = PagedCache(AttentionShape(4, 2, 64, 16, torch.float32), [(1, 20), (1, 3)], 2)
    assert_agrees(attend(cache), cache.expected())


def test_a_token_does_not_depend_on_its_chunk() -> None:
    """With one shape of tiles: the last token of a prefill has the bits of a decode there."""
    shape = AttentionShape(4, 2, 64, 16, torch.bfloat16, is_batch_invariant=True)
    whole = PagedCache(shape, [(45, 45)])
    tile = plan_triton_attention(whole.metadata, shape).tile
    output = attend(whole)
    # Beside another decode, whose step would have tiles of its own, and beside a chunk.
    for num_queries, beside in ((1, 1), (1, 3), (2, 3), (33, 3)):
        part = PagedCache(shape, [(num_queries, 45), (beside, 9)])
        part.keys, part.values = whole.keys, whole.values
        part.metadata.block_tables[0, :3] = whole.metadata.block_tables[0, :3]
        part.query[:num_queries] = whole.query[45 - num_queries :]
        plan = plan_triton_attention(part.metadata, shape)
        assert plan.tile == tile
        alone = paged_attention(part.query, part.keys, part.values, plan)[:num_queries].cpu()
        assert torch.equal(alone, output[45 - num_queries :])


def test_offsets_beyond_32_bits() -> None:
    """A cache of more than 2**31 elements; only the pages that are written take memory."""
    shape = AttentionShape(2, 1, 64, 16, torch.float16)
    near = PagedCache(shape, [(1, 20)])
    expected = near.expected()
    num_blocks = 2**31 // (16 * 64) + 8
    size, strides = (num_blocks, 16, 1, 64), (1024, 64, 64, 1)
    far_keys = torch.empty_strided(size, strides, dtype=torch.float16, device=DEVICE)
    far_values = torch.empty_strided(size, strides, dtype=torch.float16, device=DEVICE)
    table = near.metadata.block_tables
    for index in range(2):
        block_id, far_id = int(table[0, index]), num_blocks - 1 - index
        far_keys[far_id], far_values[far_id] = near.keys[block_id], near.values[block_id]
        table[0, index] = far_id
    plan = TritonAttentionPlan(shape, near.metadata, TileShape(16, 16, 4, 2), 1)
    got = paged_attention(near.query, far_keys, far_values, plan).cpu()
    assert_agrees(got, expected)
