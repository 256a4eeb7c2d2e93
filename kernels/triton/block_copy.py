"""Batched copies of whole blocks, of all layers in one launch: within a cache, out of it, into it.

As vLLM's copy_blocks and swap_blocks (Kwon et al. 2023), in one launch with blocks gathered and
scattered by id. Knows ids and sizes. Invariant: no target is a source of the same call, so the
order of the copies does not matter; bits are moved, whatever they mean.
"""

# pyright: standard, reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl

WORDS = 1024
WORD = torch.int32


@triton.jit
def copy_blocks_kernel(
    target_ptr,  # [num_layers, num_target_blocks, block_words] int32, of any strides
    source_ptr,  # [num_layers, num_source_blocks, block_words] int32
    target_ids_ptr,  # [num_copies] int32
    source_ids_ptr,  # [num_copies] int32
    target_layer_stride,
    source_layer_stride,
    target_block_stride,
    source_block_stride,
    block_words,
    WORDS_AT_ONCE: tl.constexpr,
):
    """Grid: (num_copies, num_layers, cdiv(block_words, WORDS_AT_ONCE))"""
    copy = tl.program_id(0)
    layer = tl.program_id(1).to(tl.int64)
    words = tl.program_id(2) * WORDS_AT_ONCE + tl.arange(0, WORDS_AT_ONCE)
    is_inside = words < block_words
    source = tl.load(source_ids_ptr + copy).to(tl.int64) * source_block_stride
    target = tl.load(target_ids_ptr + copy).to(tl.int64) * target_block_stride
    moved = tl.load(source_ptr + layer * source_layer_stride + source + words, mask=is_inside)
    tl.store(target_ptr + layer * target_layer_stride + target + words, moved, mask=is_inside)


def copy_blocks(
    source: torch.Tensor,  # [num_layers, num_source_blocks, …], each block contiguous
    target: torch.Tensor,  # [num_layers, num_target_blocks, …], as source
    source_ids: torch.Tensor,  # [num_copies] int32
    target_ids: torch.Tensor,  # [num_copies] int32
) -> None:
    """See reference.copy_blocks. A cache's keys and values count as layers of their own."""
    assert source.shape[2:] == target.shape[2:]
    assert source.shape[0] == target.shape[0]
    assert source_ids.shape == target_ids.shape
    from_words, to_words = _as_words(source), _as_words(target)
    block_words = from_words.shape[2]
    grid = (source_ids.shape[0], source.shape[0], triton.cdiv(block_words, WORDS))
    copy_blocks_kernel[grid](
        to_words,
        from_words,
        target_ids,
        source_ids,
        to_words.stride(0),
        from_words.stride(0),
        to_words.stride(1),
        from_words.stride(1),
        block_words,
        WORDS_AT_ONCE=WORDS,
        num_warps=4,
    )


def _as_words(blocks: torch.Tensor) -> torch.Tensor:
    """[num_layers, num_blocks, words] int32, the same memory; each block contiguous."""
    flat = blocks.flatten(2)
    assert flat.data_ptr() == blocks.data_ptr(), "a block has to be contiguous"
    return flat.view(WORD)
