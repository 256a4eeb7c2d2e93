"""A small model that drafts for a large one: same blocks, same noise, a KV cache of its own.

Its cache has the target's block ids, so block tables, prefix hits and swapping need no second
bookkeeping; where a hit's block lacks a position of the draft model's, a draft is worse, and no
more. It draws as the target does, with the uniform number of (seed, choice, index), so that two
models that nearly agree draw the same token. Knows nothing about how drafts are verified.
Invariant: before it drafts for a request, it has computed all tokens of it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from executor_svc.drafts import Drafts
from executor_svc.input_batch import FlatTokens, flat_tokens
from executor_svc.kv_cache import KVCache
from executor_svc.models.causal_lm import CausalLM
from executor_svc.request_table import RequestTable
from executor_svc.sampler import Sampler, SamplingBatch
from segue.types import SchedulerOutput

Int32Array = npt.NDArray[np.int32]


class DraftModel:
    """See `DraftProposer`."""

    def __init__(self, model: CausalLM, kv_cache: KVCache) -> None:
        self._model = model
        self._kv_cache = kv_cache
        self._sampler = Sampler(model.vocab_size)
        self._computed: dict[str, int] = {}  # positions written, maybe with drafts since rejected

    def propose(self, plan: SchedulerOutput, table: RequestTable) -> Drafts:
        self._forget(plan)
        for new in (*plan.scheduled_new_reqs, *plan.scheduled_resumed_reqs):
            self._computed[new.request_id] = new.num_computed_tokens
        wanted = {request_id: len(ids) for request_id, ids in plan.draft_token_ids.items()}
        tokens, request_ids = self._behind(plan, table, wanted)
        if tokens is None:
            return {}
        hidden_states = self._forward(tokens)
        drafting = [index for index, name in enumerate(request_ids) if wanted.get(name)]
        if not drafting:
            return {}
        ends = tokens.metadata.cu_seqlens_q.numpy()[1:] - 1
        hidden_states = hidden_states[torch.from_numpy(ends[drafting].astype(np.int64))]
        return self._draft([request_ids[i] for i in drafting], wanted, hidden_states, table)

    def move_blocks(self, plan: SchedulerOutput) -> None:
        self._kv_cache.swap_out(plan.swap_out)
        self._kv_cache.swap_in(plan.swap_in)
        self._kv_cache.copy(plan.copies)

    def clear_non_finite(self, block_ids: list[int]) -> None:
        self._kv_cache.clear_non_finite(block_ids)

    def reset(self) -> None:
        self._computed = {}

    def _forget(self, plan: SchedulerOutput) -> None:
        for request_id in (*plan.preempted_req_ids, *plan.finished_req_ids):
            self._computed.pop(request_id, None)

    def _behind(
        self, plan: SchedulerOutput, table: RequestTable, wanted: dict[str, int]
    ) -> tuple[FlatTokens | None, list[str]]:
        """What it has not computed of the known tokens of this step, and whose that is."""
        request_ids: list[str] = []
        starts: list[int] = []
        ends: list[int] = []
        limit = self._model.max_model_len
        for request_id, num_scheduled in plan.num_scheduled_tokens.items():
            computed = int(table.num_computed_tokens[table.row_of[request_id]])
            num_drafts = wanted.get(request_id, 0)
            end = computed + num_scheduled - num_drafts
            if limit and end + num_drafts > limit:
                continue  # it was not made for so long a text
            request_ids.append(request_id)
            # What was rejected is written again.
            starts.append(min(self._computed.get(request_id, 0), computed))
            ends.append(end)
            self._computed[request_id] = end
        if not request_ids:
            return None, []
        rows = np.array([table.row_of[name] for name in request_ids], dtype=np.int32)
        first = np.array(starts, dtype=np.int32)
        counts = np.array(ends, dtype=np.int32) - first
        block_size = self._kv_cache.block_size
        return flat_tokens(table, rows, first, counts, block_size), request_ids

    def _draft(
        self,
        request_ids: list[str],
        wanted: dict[str, int],
        hidden_states: torch.Tensor,  # [len(request_ids), hidden_size]
        table: RequestTable,
    ) -> Drafts:
        """Token by token, for all requests at once; the table's room behind the tokens is used."""
        drafts: Drafts = {request_id: [] for request_id in request_ids}
        for depth in range(max(wanted[request_id] for request_id in request_ids)):
            rows = np.array([table.row_of[name] for name in request_ids], dtype=np.int32)
            sampled = self._sample(rows, depth, hidden_states, table)
            for request_id, row, token_id in zip(request_ids, rows, sampled.tolist(), strict=True):
                drafts[request_id].append(token_id)
                table.write_drafts(int(row), drafts[request_id])
            request_ids = [name for name in request_ids if wanted[name] > depth + 1]
            if not request_ids:
                break
            rows = np.array([table.row_of[name] for name in request_ids], dtype=np.int32)
            starts = table.num_tokens[rows] + depth
            ones = np.ones(len(rows), dtype=np.int32)
            tokens = flat_tokens(table, rows, starts, ones, self._kv_cache.block_size)
            hidden_states = self._forward(tokens)
            for request_id, start in zip(request_ids, starts.tolist(), strict=True):
                self._computed[request_id] = start + 1
        return drafts

    def _sample(
        self, rows: Int32Array, depth: int, hidden_states: torch.Tensor, table: RequestTable
    ) -> Int32Array:
        infos = [table.info(int(row)) for row in rows]
        num_tokens = table.num_tokens[rows] + depth
        batch = SamplingBatch(
            params=[replace(info.sampling_params, num_logprobs=None) for info in infos],
            choices=[info.choice for info in infos],
            output_indices=num_tokens - table.num_prompt_tokens[rows],
            token_ids=table.token_ids,
            table_rows=rows,
            num_prompt_tokens=table.num_prompt_tokens[rows],
            num_tokens=num_tokens,
        )
        return self._sampler.sample(self._model.compute_logits(hidden_states), batch).token_ids

    def _forward(self, tokens: FlatTokens) -> torch.Tensor:
        return self._model.forward(
            tokens.input_ids, tokens.positions, self._kv_cache, tokens.metadata
        )
