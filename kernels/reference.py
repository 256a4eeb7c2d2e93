"""The specification of every op, in the plainest torch. Faster kernels are held to it by tests.

Knows nothing of ours: no request, no model, no step. Invariant: readable first; what stands here is
what the op means, whatever the device.
"""

from __future__ import annotations

import torch

PHILOX_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
PHILOX_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
PHILOX_ROUNDS = 10
MASK_32 = 0xFFFFFFFF


def philox_uniform(
    seeds: torch.Tensor,  # [n] int64, all 64 bits are used
    choices: torch.Tensor,  # [n] int64, below 2**32
    output_indices: torch.Tensor,  # [n] int64, below 2**32
) -> torch.Tensor:
    """One uniform number in (0, 1) of each (seed, choice, output index): [n] float64.

    Philox 4x32-10 (Salmon et al. 2011), key = the seed's low and high half, counter =
    (output index, choice, 0, 0); the first of the four words w gives (w + 1/2) / 2**32.
    """
    keys = [seeds & MASK_32, (seeds >> 32) & MASK_32]
    words = [output_indices, choices, torch.zeros_like(seeds), torch.zeros_like(seeds)]
    for _ in range(PHILOX_ROUNDS):
        high_0, low_0 = _multiply_32(words[0], PHILOX_MULTIPLIERS[0])
        high_1, low_1 = _multiply_32(words[2], PHILOX_MULTIPLIERS[1])
        words = [high_1 ^ words[1] ^ keys[0], low_1, high_0 ^ words[3] ^ keys[1], low_0]
        keys = [(key + step) & MASK_32 for key, step in zip(keys, PHILOX_KEY_STEPS, strict=True)]
    return (words[0].double() + 0.5) / 2.0**32


def _multiply_32(words: torch.Tensor, factor: int) -> tuple[torch.Tensor, torch.Tensor]:
    """High and low 32 bits of a 64-bit product, without leaving the range of int64."""
    low_part = (words & 0xFFFF) * factor  # below 2**48
    high_part = (words >> 16) * factor + (low_part >> 16)  # below 2**49
    return high_part >> 16, ((high_part & 0xFFFF) << 16) | (low_part & 0xFFFF)
