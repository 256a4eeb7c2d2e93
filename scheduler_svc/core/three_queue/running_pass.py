"""Serving those that run, in order, and preempting from the tail when blocks run out (spec 5).

Knows nothing about those that wait. Invariant: whoever gets a row has a slot for each of its
tokens; nobody who has a row in this step is a victim.
"""

from __future__ import annotations

from scheduler_svc.core.request import Request
from scheduler_svc.core.three_queue.adapter_limit import use_adapter
from scheduler_svc.core.three_queue.lane_state import LaneState
from scheduler_svc.core.three_queue.step_draft import (
    PreemptionMode,
    RowKind,
    ScheduledRow,
    StepDraft,
)
from scheduler_svc.core.three_queue.token_count import TokenCount


class RunningPass:
    def __init__(self, lane: LaneState, token_count: TokenCount) -> None:
        self._lane = lane
        self._config = lane.config
        self._tables = lane.tables
        self._token_count = token_count
        self._has_plain_decodes = not lane.config.num_lookahead_slots

    def run(self, draft: StepDraft) -> None:
        """Take requests from the head of `running`; who finds no budget ends it, and stays."""
        draft.num_lookahead_slots = self._config.num_lookahead_slots
        running, budget = self._lane.running, draft.budget
        while True:
            if self._has_plain_decodes and draft.adapters is None:
                self._serve_plain_decodes(draft)
            if not running:
                break
            request = running.first
            num_tokens = self._token_count.of_started(request, budget, chunks=draft.chunks)
            if num_tokens == 0:
                break
            running.pop_first()
            if self._make_room(request, draft):
                self._serve(request, num_tokens, draft)

    def _serve_plain_decodes(self, draft: StepDraft) -> None:
        """Serve who wants one token, up to the first that is different, or while a block is free.

        This is nearly all of a step, and the rest of this file in short: most decodes neither need
        a block nor fill one. V0 wants to see a free block for each of them all the same.
        """
        tables, size = self._tables, self._config.block_size
        gpu, table_tokens = tables.gpu, tables.num_table_tokens
        limit = self._token_count.max_decodes(draft.budget, chunks=draft.chunks)
        num_free = gpu.num_free
        served: list[ScheduledRow] = []
        for request in self._lane.running:
            num_tokens = request.num_tokens
            if (
                request.is_prefill_chunk
                or table_tokens[request.request_id] != num_tokens - 1
                or len(served) >= limit
                or not num_free
            ):
                break
            row = ScheduledRow(request, RowKind.RUNNING, False, 1)
            if num_tokens % size < 2:  # it has just filled a block, or gone beyond one
                self._put_into_table(row)
                num_free = gpu.num_free
            else:
                table_tokens[request.request_id] = num_tokens
            served.append(row)
        self._lane.running.drop_first(len(served))
        draft.running_decodes += served
        request_ids = [row.request.request_id for row in served]
        draft.budget.add_decodes(request_ids, counts_seqs=draft.chunks)

    def _make_room(self, request: Request, draft: StepDraft) -> bool:
        """Preempt from the tail until the request can go on; false: it was itself the last."""
        running = self._lane.running
        while not self._tables.can_append(request, self._num_lookahead(request)):
            draft.budget.remove(request.request_id)
            if self._config.strict and draft.adapters is not None:
                # Also if a row has it already: the prompts to come may bring one too many.
                draft.adapters.discard(request.submission.adapter)
            victim = running.pop_last() if running else request
            self._preempt(victim, draft)
            if victim is request:
                return False
        return True

    def _preempt(self, victim: Request, draft: StepDraft) -> None:
        mode = self._lane.preempt(victim, draft)
        draft.preemptions.append((victim.request_id, mode))
        is_swapped = mode is PreemptionMode.SWAP
        (draft.swapped_out if is_swapped else draft.recomputed).append(victim)

    def _serve(self, request: Request, num_tokens: int, draft: StepDraft) -> None:
        is_prefill = request.is_prefill_chunk
        row = ScheduledRow(request, RowKind.RUNNING, is_prefill, num_tokens)
        self._put_into_table(row)
        (draft.running_prefills if is_prefill else draft.running_decodes).append(row)
        draft.budget.add_tokens(request.request_id, num_tokens)
        if draft.chunks:
            draft.budget.add_seq(request.request_id)
        use_adapter(request, draft)

    def _put_into_table(self, row: ScheduledRow) -> None:
        request = row.request
        num_blocks = len(request.block_ids)
        self._tables.append(request, self._num_lookahead(request))
        row.new_block_ids = tuple(request.block_ids[num_blocks:])
        num_computed = request.num_computed_tokens + row.num_tokens
        if self._tables.register_full_blocks(request, num_computed):
            row.kind = RowKind.REPLACED

    def _num_lookahead(self, request: Request) -> int:
        return 0 if request.is_prefill_chunk else self._config.num_lookahead_slots
