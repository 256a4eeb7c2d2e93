"""Runs one step's plan: table, batch, forward, sample.

Knows no scheduler, no stream and no text: a plan comes in, a result goes out, and only tensors lie
between. Invariant: plans are run once and in order (who calls sees to that); after a step that
raised, nothing runs until `reset`, since the table and the cache may hold half of it.
"""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt
import torch

from executor_svc.input_batch import InputBatch, make_input_batch
from executor_svc.kv_cache import KVCache
from executor_svc.models.causal_lm import CausalLM
from executor_svc.position_counter import PositionCounter
from executor_svc.request_table import PlanError, RequestTable
from executor_svc.sampler import Sampler, SamplerOutput, SamplingBatch
from executor_svc.step_phase import FORWARD, PREPARE, SAMPLE, SWAP, StepPhase
from segue.types import Capacity, ModelRunnerOutput, SchedulerOutput, StepTimings, TokenLogprobs

Int32Array = npt.NDArray[np.int32]

# What a row that failed is given as its token: the steps planned behind it need an input.
PLACEHOLDER_TOKEN_ID = 0


class ModelRunner:
    """One model on one device. Not thread-safe: one call at a time."""

    def __init__(self, model: CausalLM, kv_cache: KVCache, max_model_len: int = 0) -> None:
        self._model = model
        self._kv_cache = kv_cache
        limits = [limit for limit in (max_model_len, model.max_model_len) if limit]
        self._max_model_len = min(limits, default=0)
        self._table = self._empty_table()
        self._sampler = Sampler(model.vocab_size)
        self._positions = PositionCounter()
        self._has_failed = False
        self._last_end_ns: int | None = None
        self.phases: list[StepPhase] = []  # of the last step

    @property
    def capacity(self) -> Capacity:
        return Capacity(
            num_blocks=self._kv_cache.num_blocks,
            block_size=self._kv_cache.block_size,
            num_cpu_blocks=self._kv_cache.num_cpu_blocks,
            max_model_len=self._max_model_len,
            vocab_size=self._model.vocab_size,
        )

    @property
    def num_positions_computed(self) -> int:
        """(request, position) pairs computed in this process's life."""
        return self._positions.num_positions_computed

    @property
    def num_positions_recomputed(self) -> int:
        """Those of them that had been computed before; over all generations."""
        return self._positions.num_positions_recomputed

    @property
    def num_requests(self) -> int:
        """Requests in the table."""
        return len(self._table.row_of)

    def reset(self) -> None:
        """A new generation: nothing is held, and what the cache holds means nothing any more."""
        self._table = self._empty_table()
        self._has_failed = False
        self._last_end_ns = None

    @torch.inference_mode()
    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        if self._has_failed:
            raise PlanError("an earlier step failed; a new generation has to be opened")
        self._has_failed = True  # until this step is through
        output = self._execute(plan)
        self._has_failed = False
        return output

    def _execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        start_ns = time.monotonic_ns()
        idle_ns = start_ns - self._last_end_ns if self._last_end_ns is not None else 0
        if plan.draft_token_ids:
            raise PlanError("draft tokens are not supported by this executor")
        self.phases = []
        self._move_blocks(plan)
        moved_ns = self.phases[-1].ended_ns if self.phases else start_ns
        self._table.apply(plan)
        for request_id in plan.finished_req_ids:
            self._positions.forget(request_id)
        if not plan.num_scheduled_tokens:
            self._last_end_ns = time.monotonic_ns()
            return ModelRunnerOutput(plan.step_id, plan.generation)

        batch = make_input_batch(plan, self._table, self._kv_cache.block_size)
        sampling_batch = self._sampling_batch(batch)
        prepared_ns = time.monotonic_ns()
        logits = self._logits(batch)
        forward_ns = time.monotonic_ns()
        sampled = self._sampler.sample(logits, sampling_batch) if logits is not None else None
        self._settle(plan, batch, sampled)
        self._last_end_ns = time.monotonic_ns()
        self.phases += [
            StepPhase(PREPARE, moved_ns, prepared_ns),
            StepPhase(FORWARD, prepared_ns, forward_ns),
            StepPhase(SAMPLE, forward_ns, self._last_end_ns),
        ]
        timings = StepTimings(
            idle_us=idle_ns // 1000,
            prepare_us=(prepared_ns - start_ns) // 1000,
            forward_us=(forward_ns - prepared_ns) // 1000,
            sample_us=(self._last_end_ns - forward_ns) // 1000,
        )
        return self._output(plan, batch, sampled, timings)

    def _move_blocks(self, plan: SchedulerOutput) -> None:
        """Before anything is written: blocks that swap_out frees are written by the same step."""
        if not (plan.swap_out or plan.swap_in or plan.copies):
            return
        start_ns = time.monotonic_ns()
        self._kv_cache.swap_out(plan.swap_out)
        self._kv_cache.swap_in(plan.swap_in)
        self._kv_cache.copy(plan.copies)
        self.phases.append(StepPhase(SWAP, start_ns, time.monotonic_ns()))

    def _logits(self, batch: InputBatch) -> torch.Tensor | None:
        """[num_samples, vocab_size], None where no row samples."""
        hidden_states = self._model.forward(
            batch.input_ids, batch.positions, self._kv_cache, batch.metadata
        )
        if len(batch.sampled) == 0:
            return None
        return self._model.compute_logits(hidden_states[batch.logits_indices])

    def _sampling_batch(self, batch: InputBatch) -> SamplingBatch:
        table = self._table
        rows = batch.table_rows[batch.sampled]
        infos = [table.info(row) for row in rows]
        return SamplingBatch(
            params=[info.sampling_params for info in infos],
            choices=[info.choice for info in infos],
            output_indices=batch.output_indices,
            token_ids=table.token_ids,
            table_rows=rows,
            num_prompt_tokens=table.num_prompt_tokens[rows],
            num_tokens=table.num_tokens[rows],
        )

    def _settle(
        self, plan: SchedulerOutput, batch: InputBatch, sampled: SamplerOutput | None
    ) -> None:
        """The table moves on: positions are computed, samples are the next step's inputs."""
        computed = self._table.num_computed_tokens[batch.table_rows].tolist()
        for (request_id, num_scheduled), start in zip(
            plan.num_scheduled_tokens.items(), computed, strict=True
        ):
            self._positions.count(request_id, start, start + num_scheduled)
        self._table.advance(batch.table_rows, batch.num_scheduled)
        if sampled is None:
            return
        rows = batch.table_rows[batch.sampled]
        for index, error in sampled.errors.items():
            row = int(rows[index])
            info = self._table.info(row)
            info.error = info.error or error
            self._kv_cache.clear_non_finite(self._table.block_ids(row))
        token_ids = sampled.token_ids
        failed = [i for i, row in enumerate(rows) if self._table.info(int(row)).error]
        token_ids[failed] = PLACEHOLDER_TOKEN_ID
        self._table.append_samples(rows, token_ids)

    def _output(
        self,
        plan: SchedulerOutput,
        batch: InputBatch,
        sampled: SamplerOutput | None,
        timings: StepTimings,
    ) -> ModelRunnerOutput:
        if sampled is None:
            return ModelRunnerOutput(plan.step_id, plan.generation, timings=timings)
        infos = [self._table.info(int(row)) for row in batch.table_rows[batch.sampled]]
        logprobs: dict[str, list[TokenLogprobs]] = {
            infos[index].request_id: [logprob]
            for index, logprob in sampled.logprobs.items()
            if not infos[index].error
        }
        return ModelRunnerOutput(
            step_id=plan.step_id,
            generation=plan.generation,
            request_ids=[info.request_id for info in infos],
            first_output_indices=batch.output_indices.tolist(),
            sampled_token_ids=[
                [] if info.error else [token_id]
                for info, token_id in zip(infos, sampled.token_ids.tolist(), strict=True)
            ],
            logprobs=logprobs,
            row_errors={info.request_id: info.error for info in infos if info.error},
            timings=timings,
        )

    def _empty_table(self) -> RequestTable:
        return RequestTable(
            self._kv_cache.num_blocks, self._kv_cache.block_size, self._model.vocab_size
        )
