"""Which `rope_scaling` the factors of a GGUF file's `rope_freqs` were made of.

Knows Llama 3's formula. Invariant: what is said gives back the very factors; factors of another
formula are refused.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from segue.model_files.model_directory import ModelDirectoryError

FACTORS = (8.0, 16.0, 32.0)
ORIGINAL_LENGTHS = (8192,)
LOW, HIGH = 1.0, 4.0  # of every Llama 3
TOLERANCE = 1e-4


def scaling_of_factors(factors: npt.NDArray[np.float32], theta: float) -> dict[str, Any]:
    """The rope_scaling of config.json."""
    for factor in (float(factors.max()), *FACTORS):
        for length in ORIGINAL_LENGTHS:
            expected = llama3_factors(2 * len(factors), theta, factor, length)
            if np.allclose(factors, expected, rtol=TOLERANCE):
                return {
                    "rope_type": "llama3",
                    "factor": round(factor, 4),
                    "low_freq_factor": LOW,
                    "high_freq_factor": HIGH,
                    "original_max_position_embeddings": length,
                }
    raise ModelDirectoryError(
        "GGUF tensor 'rope_freqs.weight' is not the RoPE scaling of a Llama 3"
    )


def llama3_factors(
    head_dim: int, theta: float, factor: float, original_length: int
) -> npt.NDArray[np.float64]:
    """By which each of the head_dim / 2 frequencies is divided."""
    frequencies = 1.0 / theta ** (np.arange(0, head_dim, 2) / head_dim)
    wavelengths = 2 * math.pi / frequencies
    smooth = (original_length / wavelengths - LOW) / (HIGH - LOW)
    blended = 1.0 / ((1 - smooth) / factor + smooth)
    scaled = np.where(wavelengths > original_length / LOW, factor, blended)
    return np.where(wavelengths < original_length / HIGH, 1.0, scaled)
