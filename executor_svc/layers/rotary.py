"""Cosines and sines of rotary positions, tabulated once.

Knows the scalings of Hugging Face's configurations, and no layer. Invariant: computed in float32 as
Hugging Face does, rounded once to the model's dtype.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(slots=True, frozen=True)
class RotaryConfig:
    """`scaling` is config.json's rope_scaling or rope_parameters, or empty."""

    head_dim: int
    theta: float
    max_positions: int
    scaling: dict[str, Any]


class RotaryTable:
    def __init__(
        self, config: RotaryConfig, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> None:
        frequencies = _inverse_frequencies(config)
        angles = torch.arange(config.max_positions).float()[:, None] * frequencies
        cos, sin = angles.cos(), angles.sin()
        # [max_positions, 1, head_dim], as kernels.rotary_embedding wants them; 1 for the heads.
        self._cos = torch.cat([cos, cos], dim=1).to(dtype).unsqueeze(1).to(device)
        self._sin = torch.cat([-sin, sin], dim=1).to(dtype).unsqueeze(1).to(device)

    def lookup(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin [num_tokens, 1, head_dim]."""
        return self._cos[positions], self._sin[positions]


def _inverse_frequencies(config: RotaryConfig) -> torch.Tensor:
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    frequencies = 1.0 / (config.theta**exponents)
    kind = config.scaling.get("rope_type") or config.scaling.get("type") or "default"
    if kind == "default":
        return frequencies
    if kind == "linear":
        return frequencies / float(config.scaling["factor"])
    if kind == "llama3":
        return _llama3_frequencies(frequencies, config.scaling)
    raise ValueError(f"rotary scaling {kind!r} is not one of default, linear, llama3")


def _llama3_frequencies(frequencies: torch.Tensor, scaling: dict[str, Any]) -> torch.Tensor:
    """Long waves are stretched by the factor, short ones kept, those between blended."""
    factor = float(scaling["factor"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    original = float(scaling["original_max_position_embeddings"])
    wavelengths = 2 * math.pi / frequencies
    smooth = (original / wavelengths - low) / (high - low)
    blended = (1 - smooth) * frequencies / factor + smooth * frequencies
    scaled = torch.where(wavelengths > original / low, frequencies / factor, blended)
    return torch.where(wavelengths < original / high, frequencies, scaled)
