"""A feed-forward part of many experts, of which each token goes through a few.

Knows its weights. Invariant: a token's result depends on that token alone: each expert multiplies
row by row exactly, and a token's experts are summed best first, in float32. The loop is over the
experts that some token has chosen, never over tokens.
"""

from __future__ import annotations

import torch

from executor_svc.layers.mlp import GatedMLP
from kernels import RowExactLinear


class MixtureOfExperts:
    def __init__(
        self, router: RowExactLinear, experts: list[GatedMLP], num_per_token: int, normalizes: bool
    ) -> None:
        self._router = router
        self._experts = experts
        self._num_per_token = num_per_token
        self._normalizes = normalizes

    def __call__(self, hidden_states: torch.Tensor) -> torch.Tensor:
        weights, chosen = self._choose(hidden_states)
        num_tokens, hidden_size = hidden_states.shape
        # Pairs of a token and one of its experts, those of one expert side by side.
        order = chosen.view(-1).argsort(stable=True)
        counts = torch.bincount(chosen.view(-1), minlength=len(self._experts)).tolist()
        tokens = order // self._num_per_token
        results = hidden_states.new_empty(len(order), hidden_size)
        start = 0
        for expert, count in zip(self._experts, counts, strict=True):
            if count:
                pairs = slice(start, start + count)
                results[order[pairs]] = expert(hidden_states[tokens[pairs]])
                start += count
        weighted = results.view(num_tokens, self._num_per_token, hidden_size) * weights.unsqueeze(2)
        total = weighted[:, 0]
        for rank in range(1, self._num_per_token):
            total = total + weighted[:, rank]
        return total.to(hidden_states.dtype)

    def products(self) -> dict[str, RowExactLinear]:
        first = self._experts[0].products()
        return {"router": self._router} | {f"expert.{name}": p for name, p in first.items()}

    def _choose(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights (float32) and experts of each token [num_tokens, num_per_token], best first."""
        logits = self._router(hidden_states).float()
        ordered, experts = logits.sort(dim=1, descending=True, stable=True)
        shares = torch.exp(ordered - ordered[:, :1])
        best = shares[:, : self._num_per_token]
        total = (best if self._normalizes else shares).sum(dim=1, keepdim=True)
        return best / total, experts[:, : self._num_per_token].contiguous()
