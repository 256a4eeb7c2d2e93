"""The gated feed-forward part of a layer.

Knows its weights. Invariant: gate and up are one product, gate first.
"""

from __future__ import annotations

import torch

from kernels import RowExactLinear, silu_and_mul


class GatedMLP:
    def __init__(self, gate_up_projection: RowExactLinear, down_projection: RowExactLinear) -> None:
        self._gate_up_projection = gate_up_projection
        self._down_projection = down_projection

    def __call__(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self._down_projection(silu_and_mul(self._gate_up_projection(hidden_states)))

    def products(self) -> dict[str, RowExactLinear]:
        return {
            "gate_up_projection": self._gate_up_projection,
            "down_projection": self._down_projection,
        }
