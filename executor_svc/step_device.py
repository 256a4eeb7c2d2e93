"""Where a step's tensors are: what the model runner asks of a device, and the CPU's answer.

Knows a batch's tensors, no plan and no table. Invariant: `sample` follows the `logits` of the same
batch; a row's result does not depend on where it is computed, but for rounding.
"""

from __future__ import annotations

from typing import Protocol

import torch

from executor_svc.input_batch import InputBatch
from executor_svc.kv_cache import KVCache
from executor_svc.models.causal_lm import CausalLM
from executor_svc.sampler import Sampler, SamplerOutput, SamplingBatch


class StepDevice(Protocol):
    def logits(self, batch: InputBatch, sampling: SamplingBatch) -> torch.Tensor | None:
        """[num_samples, vocab_size], None where no row samples."""
        ...

    def sample(self, logits: torch.Tensor, sampling: SamplingBatch) -> SamplerOutput: ...


class CpuStep:
    def __init__(self, model: CausalLM, kv_cache: KVCache) -> None:
        self._model = model
        self._kv_cache = kv_cache
        self._sampler = Sampler(model.vocab_size)

    def logits(self, batch: InputBatch, sampling: SamplingBatch) -> torch.Tensor | None:
        tokens, offsets = batch.tokens, batch.samples.token_offsets
        hidden_states = self._model.forward(
            tokens.input_ids, tokens.positions, self._kv_cache, tokens.metadata
        )
        if len(offsets) == 0:
            return None
        if len(offsets) < len(hidden_states):  # they ascend: as many are all of them
            hidden_states = hidden_states[torch.from_numpy(offsets)]
        return self._model.compute_logits(hidden_states)

    def sample(self, logits: torch.Tensor, sampling: SamplingBatch) -> SamplerOutput:
        return self._sampler.sample(logits, sampling)
