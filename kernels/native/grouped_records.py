"""Grouped weights in the layout of `groups.h`.

Knows that layout, no product. Invariant: what lies behind the edges is zero in codes, scales and
minima, so that it adds nothing.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kernels.grouped_weight import GROUP_SIZE, GroupedWeight

LANES = 16
HALF_PAIRS, NIBBLE_BITS = GROUP_SIZE // 4, 4


def make_records(weight: GroupedWeight) -> torch.Tensor:
    """[ceil(out_features / 16), num_groups, bytes of a record] uint8."""
    num_missing = -weight.out_features % LANES
    codes = F.pad(weight.codes, (0, 0, 0, 0, 0, num_missing))
    parts = [_by_block(weight.scales, num_missing)]
    if weight.minima is None:
        parts.append(_bytes(codes))
    else:
        parts += [_by_block(weight.minima, num_missing), _nibbles(codes)]
    return torch.cat(parts, dim=2)


def _by_block(values: torch.Tensor, num_missing: int) -> torch.Tensor:
    """[out_features, num_groups] float16 -> [num_blocks, num_groups, 32] uint8."""
    padded = F.pad(values, (0, 0, 0, num_missing))
    by_block = padded.view(-1, LANES, values.shape[1])
    return by_block.transpose(1, 2).contiguous().view(torch.uint8)


def _bytes(codes: torch.Tensor) -> torch.Tensor:
    """[num_blocks, num_groups, pairs of inputs * 16 outputs * 2] uint8."""
    num_groups = codes.shape[1]
    pairs = codes.view(-1, LANES, num_groups, GROUP_SIZE // 2, 2)
    by_pair = pairs.permute(0, 2, 3, 1, 4).reshape(-1, num_groups, GROUP_SIZE * LANES)
    return by_pair.view(torch.uint8)


def _nibbles(codes: torch.Tensor) -> torch.Tensor:
    """[num_blocks, num_groups, 2 halves of the pairs * 16 outputs * 2 words] uint8."""
    num_groups = codes.shape[1]
    by_lane = codes.view(-1, LANES, num_groups, 2, HALF_PAIRS, 2)
    # [num_blocks, num_groups, half, output, parity, pair]
    by_word = by_lane.permute(0, 2, 3, 1, 5, 4).contiguous()
    low, high = by_word[..., 0::2], by_word[..., 1::2]  # of a byte
    both = low | high << NIBBLE_BITS
    return both.view(torch.uint8).reshape(-1, num_groups, GROUP_SIZE * LANES // 2)
