"""Runs a step on a GPU: one copy to it, graphs for decodes, and one wait, for the sampled ids.

Decodes are filled up to the next of a few sizes, and each size is recorded once as a CUDA graph
(Gray 2019, "Getting Started with CUDA Graphs"; vLLM and SGLang do the same) whose inputs lie at
fixed addresses. Knows a batch's tensors, no plan and no table. Invariant: what fills a batch up has
no slot and no context, so it writes nothing that is read. Where `device` is a CPU, Triton's
interpreter runs the same code, with nothing recorded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from executor_svc.gpu_sampling import GpuSampling
from executor_svc.input_batch import InputBatch
from executor_svc.kv_cache import KVCache
from executor_svc.models.causal_lm import CausalLM
from executor_svc.sampler import SamplerOutput, SamplingBatch, make_logprobs
from executor_svc.step_buffer import Arrays, StepBuffer
from kernels import AttentionMetadata

log = logging.getLogger("segue.executor")

GRAPH_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256)
# A longer context than any table is made for runs without a graph.
MAX_GRAPH_CONTEXT = 1 << 17
NO_SLOT = -1
OVERFLOW = "the model's logits are not numbers"


@dataclass(slots=True, frozen=True)
class Recorded:
    """`run` computes the logits of the inputs that lie in the buffers now."""

    run: Callable[[], torch.Tensor]
    addresses: tuple[int, ...]


class GpuStep:
    """See `StepDevice`."""

    def __init__(
        self, model: CausalLM, kv_cache: KVCache, device: torch.device, max_context: int
    ) -> None:
        self._model = model
        self._kv_cache = kv_cache
        self._device = device
        self._buffer = StepBuffer(device)
        self._sampling = GpuSampling(model.vocab_size)
        self._on_device: dict[str, torch.Tensor] = {}
        # Experts are counted on the host, which a graph can not wait for.
        self.uses_graphs = "router" not in model.products()
        self._max_blocks = -(-min(max_context, MAX_GRAPH_CONTEXT) // kv_cache.block_size)
        self._tables = torch.zeros(
            GRAPH_SIZES[-1], self._max_blocks, dtype=torch.int32, device=device
        )
        self._recorded: dict[int, Recorded] = {}
        self._pool: Any = None

    def logits(self, batch: InputBatch, sampling: SamplingBatch) -> torch.Tensor | None:
        num_rows = len(batch.num_scheduled)
        arrays = _batch_arrays(batch)
        metadata, num_samples = batch.tokens.metadata, len(batch.samples.token_offsets)
        is_decode = metadata.max_seqlen_q == 1 and num_samples == num_rows
        fits = metadata.block_tables.shape[1] <= self._max_blocks
        sampling_arrays = self._sampling.arrays(sampling)
        if self.uses_graphs and is_decode and num_rows <= GRAPH_SIZES[-1] and fits:
            size = next(size for size in GRAPH_SIZES if size >= num_rows)
            tables = arrays.pop("block_tables")
            arrays = _filled_up(arrays, size) | {"block_tables": tables} | sampling_arrays
            self._on_device = self._buffer.upload(arrays)
            return self._replay(size, num_rows)
        self._on_device = self._buffer.upload(arrays | sampling_arrays)
        hidden_states = self._forward(self._on_device, metadata)
        if num_samples == 0:
            return None
        picked = hidden_states.index_select(0, self._on_device["logits_indices"])
        return self._model.compute_logits(picked).float()

    def sample(self, logits: torch.Tensor, sampling: SamplingBatch) -> SamplerOutput:
        on_device = self._on_device
        wanted = self._sampling.logprob_rows
        raw_rows = {row: logits[row].clone() for row, _ in wanted}
        raw_best = None
        if self._sampling.changes_logits(on_device):
            raw_best = logits.amax(dim=1)
            self._sampling.adjust(logits, on_device)
        token_ids, is_bad = self._sampling.draw(logits, on_device)
        if raw_best is not None:
            is_bad = is_bad | ~raw_best.isfinite()
        # The one wait of the step.
        tokens, bad = torch.stack([token_ids, is_bad]).cpu().numpy()
        sampled = tokens.clip(0, self._model.vocab_size - 1).astype(np.int32)
        errors = {int(row): OVERFLOW for row in np.flatnonzero(bad)}
        raw_on_host = {row: raw.cpu() for row, raw in raw_rows.items()}
        return SamplerOutput(sampled, make_logprobs(raw_on_host, sampled, wanted), errors)

    def _forward(
        self, inputs: dict[str, torch.Tensor], metadata: AttentionMetadata
    ) -> torch.Tensor:
        on_device = AttentionMetadata(
            inputs["cu_seqlens_q"],
            inputs["seq_lens"],
            inputs["block_tables"],
            inputs["slot_mapping"],
            metadata.max_seqlen_q,
            metadata.max_seqlen_k,
        )
        return self._model.forward(
            inputs["input_ids"], inputs["positions"], self._kv_cache, on_device
        )

    def _replay(self, size: int, num_rows: int) -> torch.Tensor:
        """Of the decodes in the buffer, filled up to `size`."""
        inputs = dict(self._on_device)
        uploaded = inputs["block_tables"]
        self._tables[:num_rows, : uploaded.shape[1]].copy_(uploaded)
        inputs["block_tables"] = self._tables[:size]
        addresses = tuple(tensor.data_ptr() for tensor in inputs.values())[: len(GRAPH_INPUTS)]
        recorded = self._recorded.get(size)
        if recorded is None or recorded.addresses != addresses:  # the buffer has grown
            recorded = Recorded(self._record(size, inputs), addresses)
            self._recorded[size] = recorded
        return recorded.run()[:num_rows]

    def _record(self, size: int, inputs: dict[str, torch.Tensor]) -> Callable[[], torch.Tensor]:
        longest = self._max_blocks * self._kv_cache.block_size
        metadata = AttentionMetadata(
            inputs["cu_seqlens_q"],
            inputs["seq_lens"],
            inputs["block_tables"],
            inputs["slot_mapping"],
            max_seqlen_q=1,
            max_seqlen_k=longest,
        )

        def compute() -> torch.Tensor:
            hidden_states = self._forward(inputs, metadata)
            return self._model.compute_logits(hidden_states).float()

        if self._device.type != "cuda":
            return compute
        # Once outside of the recording, so that every kernel is compiled; it writes what is
        # written again by the first replay.
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            compute()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            logits = compute()
        self._pool = self._pool or graph.pool()
        log.info("recorded decodes of %d", size)

        def replay() -> torch.Tensor:
            graph.replay()
            return logits

        return replay


# What is in a batch of decodes, in the order of the buffer.
GRAPH_INPUTS = ("input_ids", "positions", "slot_mapping", "cu_seqlens_q", "seq_lens")


def _batch_arrays(batch: InputBatch) -> Arrays:
    tokens = batch.tokens
    metadata = tokens.metadata
    return {
        "input_ids": tokens.input_ids.numpy(),
        "positions": tokens.positions.numpy(),
        "slot_mapping": metadata.slot_mapping.numpy(),
        "cu_seqlens_q": metadata.cu_seqlens_q.numpy(),
        "seq_lens": metadata.seq_lens.numpy(),
        "block_tables": metadata.block_tables.numpy(),
        "logits_indices": batch.samples.token_offsets,
    }


def _filled_up(arrays: Arrays, size: int) -> Arrays:
    """Rows without a context, tokens without a slot."""
    missing = size - len(arrays["seq_lens"])

    def filled(name: str, value: int) -> np.ndarray[Any, np.dtype[Any]]:
        return np.pad(arrays[name], (0, missing), constant_values=value)

    return {
        "input_ids": filled("input_ids", 0),
        "positions": filled("positions", 0),
        "slot_mapping": filled("slot_mapping", NO_SLOT),
        "cu_seqlens_q": filled("cu_seqlens_q", int(arrays["cu_seqlens_q"][-1])),
        "seq_lens": filled("seq_lens", 0),
    }
