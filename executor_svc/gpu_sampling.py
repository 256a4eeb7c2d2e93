"""The sampling parameters of a batch as arrays that travel with the step, and what they draw.

Knows parameters and logits; no cache and no plan. Invariant: as `sampler`'s: a row's token depends
on its own logits, parameters, tokens and output index alone, and is the one that a CPU draws, but
for the last bits of exp.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from executor_svc.sampler import SamplingBatch
from executor_svc.sampling_columns import GREEDY_BELOW_TEMPERATURE
from executor_svc.step_buffer import Arrays
from kernels.gpu import triton_ops
from segue.types import SamplingParams


class GpuSampling:
    """Keeps the arrays of the last batch: most steps have the same rows again."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._last: tuple[list[SamplingParams], list[int]] | None = None
        self._arrays: Arrays = {}
        self._held: list[tuple[int, int, int]] = []
        self._penalized: list[int] = []
        self.logprob_rows: list[tuple[int, int]] = []  # (row, how many alternatives)

    def arrays(self, batch: SamplingBatch) -> Arrays:
        """What `adjust` and `draw` need on the device. Those of every row come first."""
        now = (batch.params, batch.choices)
        if now != self._last:
            self._keep(batch)
            self._last = now
        arrays: Arrays = {"output_indices": batch.output_indices.astype(np.int64)} | self._arrays
        held = [
            (row, token)
            for row, min_tokens, token in self._held
            if batch.output_indices[row] < min_tokens
        ]
        if held:
            arrays["held_rows"], arrays["held_tokens"] = np.array(held, dtype=np.int64).T
        if self._penalized:
            arrays |= _penalized_tokens(np.array(self._penalized), batch)
        return arrays

    def adjust(self, logits: torch.Tensor, on_device: dict[str, torch.Tensor]) -> None:
        """In vLLM's order: held-back ends, bias, penalties."""
        if "held_rows" in on_device:
            logits[on_device["held_rows"], on_device["held_tokens"]] = -math.inf
        if "bias_rows" in on_device:
            logits[on_device["bias_rows"], on_device["bias_tokens"]] += on_device["bias_values"]
        if "penalized_rows" in on_device:
            ops = triton_ops()
            names = ("rows", "token_ids", "num_prompt_tokens", "num_tokens")
            penalties = ("presence", "frequency", "repetition")
            columns = [on_device[f"penalized_{name}"] for name in (*names, *penalties)]
            ops.apply_penalties(logits, ops.PenaltyColumns(*columns))

    def changes_logits(self, on_device: dict[str, torch.Tensor]) -> bool:
        return any(name in on_device for name in ("held_rows", "bias_rows", "penalized_rows"))

    def draw(
        self, logits: torch.Tensor, on_device: dict[str, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens, and 1 for each row whose logits are no numbers; both [num_samples] int64."""
        ops = triton_ops()
        names = ("temperatures", "top_ks", "top_ps", "min_ps", "seeds", "choices")
        columns = ops.DrawColumns(*(on_device[name] for name in names))
        return ops.sample_tokens(logits, columns, on_device["output_indices"])

    def _keep(self, batch: SamplingBatch) -> None:
        params = batch.params
        temperatures = [p.temperature for p in params]
        arrays: Arrays = {
            "temperatures": np.array(
                [0.0 if t < GREEDY_BELOW_TEMPERATURE else t for t in temperatures], np.float32
            ),
            "top_ks": np.array([p.top_k for p in params], np.int64),
            "top_ps": np.array([p.top_p for p in params], np.float64),
            "min_ps": np.array([p.min_p for p in params], np.float32),
            "seeds": np.array([p.seed & (2**64 - 1) for p in params], np.uint64).view(np.int64),
            "choices": np.array(batch.choices, np.int64),
        }
        bias = [
            (row, token_id, value)
            for row, p in enumerate(params)
            for token_id, value in p.logit_bias
            if token_id < self._vocab_size
        ]
        if bias:
            rows, token_ids, values = zip(*bias, strict=True)
            arrays["bias_rows"] = np.array(rows, np.int64)
            arrays["bias_tokens"] = np.array(token_ids, np.int64)
            arrays["bias_values"] = np.array(values, np.float32)
        self._held = [
            (row, p.min_tokens, token_id)
            for row, p in enumerate(params)
            for token_id in {*p.stop_token_ids, p.eos_token_id}
            if p.min_tokens and token_id is not None and token_id < self._vocab_size
        ]
        self._keep_penalties(params, arrays)
        self.logprob_rows = [
            (row, min(p.num_logprobs, self._vocab_size))
            for row, p in enumerate(params)
            if p.num_logprobs is not None
        ]
        self._arrays = arrays

    def _keep_penalties(self, params: list[SamplingParams], arrays: Arrays) -> None:
        self._penalized = [
            row
            for row, p in enumerate(params)
            if p.presence_penalty or p.frequency_penalty or p.repetition_penalty != 1.0
        ]
        if not self._penalized:
            return
        penalized = [params[row] for row in self._penalized]
        arrays["penalized_rows"] = np.array(self._penalized, np.int64)
        for name in ("presence", "frequency", "repetition"):
            values = [getattr(p, f"{name}_penalty") for p in penalized]
            arrays[f"penalized_{name}"] = np.array(values, np.float32)


def _penalized_tokens(rows: np.ndarray[Any, np.dtype[Any]], batch: SamplingBatch) -> Arrays:
    num_tokens = batch.num_tokens[rows]
    return {
        "penalized_num_prompt_tokens": batch.num_prompt_tokens[rows],
        "penalized_num_tokens": num_tokens,
        "penalized_token_ids": batch.token_ids[batch.table_rows[rows], : int(num_tokens.max())],
    }
