"""Decodes whose keys are cut into parts, against the reference."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels import AttentionShape
from kernels.triton.attention_plan import TileShape, choose_splits, plan_triton_attention
from kernels.triton.split_kv_attention import split_kv_attention
from tests.kernels.paged_cache import PagedCache
from tests.kernels.triton_device import DTYPES, assert_agrees

# Of the second row all parts but the first are empty; the third ends at a part's edge.
ROWS = [(1, 200), (1, 5), (1, 128)]


def attend(cache: PagedCache, num_splits: int) -> torch.Tensor:
    plan = plan_triton_attention(cache.metadata, cache.shape)
    # Small tiles, so that a short context has several for each part.
    plan = replace(plan, num_splits=num_splits, tile=TileShape(16, 16, 4, 2))
    return split_kv_attention(cache.query, cache.keys, cache.values, plan)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_splits", [1, 4])
def test_parts_are_merged(num_splits: int, dtype: torch.dtype) -> None:
    cache = PagedCache(AttentionShape(6, 2, 64, 32, dtype), ROWS)
    assert_agrees(attend(cache, num_splits), cache.expected())


def test_soft_cap_and_odd_heads() -> None:
    shape = AttentionShape(5, 1, 80, 16, torch.float32, soft_cap=1.5)
    cache = PagedCache(shape, ROWS)
    assert_agrees(attend(cache, 8), cache.expected())


def test_rows_that_fill_up_a_recorded_batch() -> None:
    """They have no context; what comes of them is a number all the same, and nobody's."""
    cache = PagedCache(AttentionShape(4, 2, 64, 16, torch.float32), [(1, 70), (1, 33)])
    lengths = cache.metadata.seq_lens.clone()
    expected = cache.expected()
    lengths[1] = 0
    cache.metadata = replace(cache.metadata, seq_lens=lengths)
    got = attend(cache, 2)
    assert_agrees(got[0], expected[0])
    assert torch.equal(got[1], torch.zeros_like(got[1]))


def test_how_many_parts() -> None:
    """Enough programs for the device, and no part that is hardly worth a second pass."""
    shape = AttentionShape(32, 8, 128, 16, torch.bfloat16)
    assert choose_splits(shape, num_rows=1, max_seqlen_k=100_000, processors=132) == 32
    assert choose_splits(shape, num_rows=1, max_seqlen_k=600, processors=132) == 2
    assert choose_splits(shape, num_rows=256, max_seqlen_k=100_000, processors=132) == 1


def test_a_batch_invariant_plan_is_never_cut() -> None:
    cache = PagedCache(AttentionShape(4, 2, 64, 16, torch.float32), [(1, 9)])
    metadata = replace(cache.metadata, max_seqlen_k=100_000)
    assert plan_triton_attention(metadata, cache.shape).num_splits > 1
    invariant = replace(cache.shape, is_batch_invariant=True)
    assert plan_triton_attention(metadata, invariant).num_splits == 1
