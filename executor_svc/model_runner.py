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

from executor_svc.drafts import DraftProposer, Drafts, NoProposer, Verified, chosen_drafts, verify
from executor_svc.input_batch import InputBatch, Samples, make_input_batch
from executor_svc.kv_cache import KVCache
from executor_svc.models.causal_lm import CausalLM
from executor_svc.position_counter import PositionCounter
from executor_svc.request_table import PlanError, RequestTable
from executor_svc.sampler import SamplerOutput, SamplingBatch
from executor_svc.step_device import CpuStep, StepDevice
from executor_svc.step_phase import DRAFT, FORWARD, PREPARE, SAMPLE, SWAP, StepPhase
from segue.types import Capacity, ModelRunnerOutput, SchedulerOutput, StepTimings, TokenLogprobs

Int32Array = npt.NDArray[np.int32]

# What a row that failed is given as its token: the steps planned behind it need an input.
PLACEHOLDER_TOKEN_ID = 0


class ModelRunner:
    """One model on one device. Not thread-safe: one call at a time."""

    def __init__(
        self,
        model: CausalLM,
        kv_cache: KVCache,
        max_model_len: int = 0,
        proposer: DraftProposer | None = None,
        device: StepDevice | None = None,
    ) -> None:
        """`device` None: the CPU."""
        self._model = model
        self._proposer = proposer or NoProposer()
        self._kv_cache = kv_cache
        limits = [limit for limit in (max_model_len, model.max_model_len) if limit]
        self._max_model_len = min(limits, default=0)
        self._table = self._empty_table()
        self._device = device or CpuStep(model, kv_cache)
        self._positions = PositionCounter()
        self.num_draft_tokens = 0  # verified
        self.num_accepted_draft_tokens = 0
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
        self._proposer.reset()
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
        self.phases = []
        self._move_blocks(plan)
        self._table.apply(plan)
        for request_id in plan.finished_req_ids:
            self._positions.forget(request_id)
        if not plan.num_scheduled_tokens:
            self._last_end_ns = time.monotonic_ns()
            return ModelRunnerOutput(plan.step_id, plan.generation)

        drafts = self._drafts(plan)
        ready_ns = self.phases[-1].ended_ns if self.phases else start_ns
        batch = make_input_batch(plan, self._table, self._kv_cache.block_size, drafts)
        sampling_batch = self._sampling_batch(batch)
        prepared_ns = time.monotonic_ns()
        logits = self._device.logits(batch, sampling_batch)
        forward_ns = time.monotonic_ns()
        sampled = self._device.sample(logits, sampling_batch) if logits is not None else None
        verified = self._settle(plan, batch, sampled)
        self._last_end_ns = time.monotonic_ns()
        self.phases += [
            StepPhase(PREPARE, ready_ns, prepared_ns),
            StepPhase(FORWARD, prepared_ns, forward_ns),
            StepPhase(SAMPLE, forward_ns, self._last_end_ns),
        ]
        timings = StepTimings(
            idle_us=idle_ns // 1000,
            prepare_us=(prepared_ns - start_ns) // 1000,
            forward_us=(forward_ns - prepared_ns) // 1000,
            sample_us=(self._last_end_ns - forward_ns) // 1000,
        )
        if sampled is None or verified is None:
            return ModelRunnerOutput(plan.step_id, plan.generation, timings=timings)
        return self._output(plan, batch.samples, sampled, verified, timings)

    def _drafts(self, plan: SchedulerOutput) -> Drafts:
        """What is verified in this step; a phase of its own where the plan has room for any."""
        start_ns = time.monotonic_ns()
        drafts = chosen_drafts(plan, self._proposer.propose(plan, self._table))
        if drafts:
            self.phases.append(StepPhase(DRAFT, start_ns, time.monotonic_ns()))
        return drafts

    def _move_blocks(self, plan: SchedulerOutput) -> None:
        """Before anything is written: blocks that swap_out frees are written by the same step."""
        if not (plan.swap_out or plan.swap_in or plan.copies):
            return
        start_ns = time.monotonic_ns()
        self._kv_cache.swap_out(plan.swap_out)
        self._kv_cache.swap_in(plan.swap_in)
        self._kv_cache.copy(plan.copies)
        self._proposer.move_blocks(plan)
        self.phases.append(StepPhase(SWAP, start_ns, time.monotonic_ns()))

    def _sampling_batch(self, batch: InputBatch) -> SamplingBatch:
        table, samples = self._table, batch.samples
        rows = batch.table_rows[samples.row_of_sample]
        infos = [table.info(row) for row in rows]
        return SamplingBatch(
            params=[info.sampling_params for info in infos],
            choices=[info.choice for info in infos],
            output_indices=samples.output_indices,
            token_ids=table.token_ids,
            table_rows=rows,
            num_prompt_tokens=table.num_prompt_tokens[rows],
            num_tokens=samples.num_tokens,
        )

    def _settle(
        self, plan: SchedulerOutput, batch: InputBatch, sampled: SamplerOutput | None
    ) -> Verified | None:
        """The table moves on: positions are computed, samples are the next step's inputs."""
        table, samples = self._table, batch.samples
        starts = table.num_computed_tokens[batch.table_rows]
        table.advance(batch.table_rows, batch.num_scheduled)
        verified = None
        if sampled is not None:
            rows = batch.table_rows[samples.rows]
            self._note_errors(sampled, batch.table_rows[samples.row_of_sample])
            verified = verify(sampled.token_ids, samples.draft_behind, samples.num_planned_drafts)
            table.settle_drafts(rows, verified.num_accepted, verified.num_rejected)
            token_ids = sampled.token_ids[verified.first_sample + verified.num_accepted]
            failed = [i for i, row in enumerate(rows) if table.info(int(row)).error]
            token_ids[failed] = PLACEHOLDER_TOKEN_ID
            table.append_samples(rows, token_ids)
            self.num_draft_tokens += len(samples.draft_behind) - len(samples.rows)
            self.num_accepted_draft_tokens += int(verified.num_accepted.sum())
        ends = table.num_computed_tokens[batch.table_rows].tolist()
        for request_id, start, end in zip(
            plan.num_scheduled_tokens, starts.tolist(), ends, strict=True
        ):
            self._positions.count(request_id, start, end)
        return verified

    def _note_errors(self, sampled: SamplerOutput, table_rows: Int32Array) -> None:
        for index, error in sampled.errors.items():
            row = int(table_rows[index])
            info = self._table.info(row)
            info.error = info.error or error
            block_ids = self._table.block_ids(row)
            self._kv_cache.clear_non_finite(block_ids)
            self._proposer.clear_non_finite(block_ids)

    def _output(
        self,
        plan: SchedulerOutput,
        samples: Samples,
        sampled: SamplerOutput,
        verified: Verified,
        timings: StepTimings,
    ) -> ModelRunnerOutput:
        request_ids = list(plan.num_scheduled_tokens)
        request_ids = [request_ids[row] for row in samples.rows]
        infos = [self._table.info(self._table.row_of[request_id]) for request_id in request_ids]
        first = verified.first_sample.tolist()
        num_samples = np.diff(verified.first_sample, append=len(sampled.token_ids))
        taken = [
            range(start, start + accepted + 1)
            for start, accepted in zip(first, verified.num_accepted.tolist(), strict=True)
        ]
        token_ids = sampled.token_ids.tolist()
        logprobs: dict[str, list[TokenLogprobs]] = {
            info.request_id: [sampled.logprobs[index] for index in indices]
            for info, indices in zip(infos, taken, strict=True)
            if not info.error and indices[0] in sampled.logprobs
        }
        return ModelRunnerOutput(
            step_id=plan.step_id,
            generation=plan.generation,
            request_ids=request_ids,
            first_output_indices=samples.output_indices[verified.first_sample].tolist(),
            sampled_token_ids=[
                [] if info.error else [token_ids[index] for index in indices]
                for info, indices in zip(infos, taken, strict=True)
            ],
            logprobs=logprobs,
            row_errors={info.request_id: info.error for info in infos if info.error},
            timings=timings,
            num_verified_drafts=(num_samples - 1).tolist() if plan.draft_token_ids else [],
        )

    def _empty_table(self) -> RequestTable:
        return RequestTable(
            self._kv_cache.num_blocks, self._kv_cache.block_size, self._model.vocab_size
        )
