"""Logits to tokens for many rows at once, in vectorised torch, without a sort of the vocabulary.

Knows nothing about requests. Invariant: a row's result depends on its own logits and parameters
alone, bit by bit: sums over the vocabulary go block by block in float64, exp is the only function
that is not exactly rounded, and it does not depend on where an element stands.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from kernels.native import native_kernels
from kernels.numpy_bridge import as_ints
from kernels.reference import philox_uniform

# Of a nucleus; where more tokens than these make up top_p, the row is sorted after all.
NUCLEUS_CANDIDATES = 1024
SUM_BLOCK = 256


@dataclass(slots=True, frozen=True)
class FilterColumns:
    """One value per row. No top_k is 0, no top_p is 1, no min_p is 0; temperature is positive."""

    temperatures: torch.Tensor  # [n] float32
    top_ks: torch.Tensor  # [n] int64
    top_ps: torch.Tensor  # [n] float64
    min_ps: torch.Tensor  # [n] float32


@dataclass(slots=True, frozen=True)
class Noise:
    """What a row's uniform number is made of: see reference.philox_uniform."""

    seeds: torch.Tensor  # [n] int64
    choices: torch.Tensor  # [n] int64
    output_indices: torch.Tensor  # [n] int64


def draw_tokens(
    logits: torch.Tensor, rows: torch.Tensor, columns: FilterColumns, noise: Noise
) -> torch.Tensor:
    """[n] int64: a token of each of these n rows of logits; see reference.filtered_weights, .draw.
    Where a weight is hardly more or less than its neighbour's share, the compiled draw and torch's
    can differ by a token, as their exp does in its last bit."""
    native = native_kernels()
    if native is None or not native.takes_logits(logits):
        return draw_in_torch(logits, rows, columns, noise)
    filters = columns.temperatures, columns.top_ks, columns.top_ps, columns.min_ps
    return native.draw(logits, (rows, noise.seeds, noise.choices, noise.output_indices, *filters))


def draw_in_torch(
    logits: torch.Tensor, rows: torch.Tensor, columns: FilterColumns, noise: Noise
) -> torch.Tensor:
    """See draw_tokens."""
    uniforms = philox_uniform(noise.seeds, noise.choices, noise.output_indices)
    return draw(filtered_weights(logits[rows].float(), columns), uniforms)


def filtered_weights(logits: torch.Tensor, columns: FilterColumns) -> torch.Tensor:
    """[n, vocab_size] float32: see reference.filtered_weights."""
    scaled = logits / columns.temperatures.unsqueeze(1)
    weights = torch.exp(scaled - scaled.amax(dim=1, keepdim=True))
    thresholds = torch.maximum(_top_k_thresholds(weights, columns), columns.min_ps)
    if thresholds.any():
        weights = _above(weights, thresholds)
    nucleus_rows = torch.nonzero(columns.top_ps < 1.0).squeeze(1)
    if len(nucleus_rows):
        some = weights[nucleus_rows]
        weights[nucleus_rows] = _above(some, _nucleus_thresholds(some, columns, nucleus_rows))
    return weights


def argmax(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[n] int64 and [n] float32: the lowest id among each row's largest, and that logit. A NaN is
    larger than any number."""
    native = native_kernels()
    if native is not None and native.takes_logits(logits):
        return native.argmax(logits)
    return argmax_in_torch(logits)


def argmax_in_torch(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """See argmax. Much faster than torch's own: the block of the largest first, for which the CPU
    has vector instructions."""
    blocks = _in_blocks(logits, filled_with=-math.inf)
    block = blocks.amax(dim=2).argmax(dim=1)
    token_ids = block * SUM_BLOCK + blocks[torch.arange(len(blocks)), block].argmax(dim=1)
    return token_ids, logits.gather(1, token_ids.unsqueeze(1)).squeeze(1).float()


def draw(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """[n] int64: see reference.draw. First the block of the vocabulary, then the token in it."""
    blocks = _in_blocks(weights, filled_with=0.0)
    cumulative = blocks.sum(dim=2, dtype=torch.float64).cumsum(dim=1)  # [n, num_blocks]
    targets = (uniforms * cumulative[:, -1]).unsqueeze(1)
    block = (cumulative <= targets).sum(dim=1).clamp_max(cumulative.shape[1] - 1)
    rows = torch.arange(len(blocks))
    before = F.pad(cumulative, (1, 0))[rows, block].unsqueeze(1)
    chosen = blocks[rows, block].double()  # [n, SUM_BLOCK]
    in_block = (before + chosen.cumsum(dim=1) <= targets).sum(dim=1)
    # Where rounding puts the target behind the block's end, it is the block's last token.
    last = (chosen > 0).mul(torch.arange(1, SUM_BLOCK + 1)).amax(dim=1) - 1
    return block * SUM_BLOCK + torch.minimum(in_block, last)


def apply_penalties(
    logits: torch.Tensor,  # [n, vocab_size] float32, changed in place
    is_seen: torch.Tensor,  # [n, vocab_size] bool: in prompt or output
    output_counts: torch.Tensor,  # [n, vocab_size] float32
    penalties: tuple[torch.Tensor, torch.Tensor, torch.Tensor],  # each [n, 1] float32
) -> None:
    """See reference.apply_penalties; presence, frequency, repetition."""
    presence, frequency, repetition = penalties
    repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
    torch.where(is_seen, repeated, logits, out=logits)
    logits.sub_(frequency * output_counts)
    logits.sub_(presence * (output_counts > 0))


def log_normalizers(logits: torch.Tensor) -> torch.Tensor:
    """[n] float64: log of the sum of exp over the vocabulary."""
    highest = logits.amax(dim=1, keepdim=True)
    weights = torch.exp(logits - highest)
    return _block_sums(weights).log() + highest.squeeze(1).double()


def _top_k_thresholds(weights: torch.Tensor, columns: FilterColumns) -> torch.Tensor:
    """[n]: the smallest weight among each row's top_k, 0 where that is off."""
    top_ks = columns.top_ks.clamp_max(weights.shape[1])
    largest = int(top_ks.max())
    if largest == 0:
        return torch.zeros_like(columns.min_ps)
    best = torch.topk(weights, largest, dim=1).values
    thresholds = best.gather(1, (top_ks - 1).clamp_min(0).unsqueeze(1)).squeeze(1)
    return thresholds.masked_fill(top_ks == 0, 0.0)


def _nucleus_thresholds(
    weights: torch.Tensor, columns: FilterColumns, rows: torch.Tensor
) -> torch.Tensor:
    """[n]: the smallest weight of the fewest, heaviest tokens that make up top_p."""
    shares = columns.top_ps[rows] * _block_sums(weights)
    num_candidates = min(NUCLEUS_CANDIDATES, weights.shape[1])
    ordered = torch.topk(weights, num_candidates, dim=1).values
    thresholds, is_found = _last_needed(ordered, shares)
    for row in as_ints(torch.nonzero(~is_found).squeeze(1)):
        ordered = weights[row].sort(descending=True).values.unsqueeze(0)
        thresholds[row] = _last_needed(ordered, shares[row : row + 1])[0][0]
    return thresholds


def _last_needed(ordered: torch.Tensor, shares: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The weight that reaches each row's share, and whether the ordered weights do reach it."""
    cumulative = ordered.double().cumsum(dim=1)
    num_needed = (cumulative < shares.unsqueeze(1)).sum(dim=1) + 1
    is_found = num_needed <= ordered.shape[1]
    last = (num_needed.clamp_max(ordered.shape[1]) - 1).unsqueeze(1)
    return ordered.gather(1, last).squeeze(1), is_found


def _above(weights: torch.Tensor, thresholds: torch.Tensor) -> torch.Tensor:
    return weights.masked_fill(weights < thresholds.unsqueeze(1), 0.0)


def _block_sums(weights: torch.Tensor) -> torch.Tensor:
    """[n] float64. A sum over one long row alone would be split between threads."""
    blocks = _in_blocks(weights, filled_with=0.0)
    return blocks.sum(dim=2, dtype=torch.float64).cumsum(dim=1)[:, -1]


def _in_blocks(values: torch.Tensor, filled_with: float) -> torch.Tensor:
    """[n, num_blocks, SUM_BLOCK]; the same memory where the vocabulary has no broken block."""
    num_missing = -values.shape[1] % SUM_BLOCK
    if num_missing:
        values = F.pad(values, (0, num_missing), value=filled_with)
    return values.reshape(values.shape[0], -1, SUM_BLOCK)
