"""From a drafted step to its `SchedulerOutput`, and what follows for its requests.

Knows nothing about budgets or blocks. Invariant: what is built says all that the executor needs to
know, once (rule 3); `num_computed_tokens` counts this step's tokens from now on.
"""

from __future__ import annotations

from scheduler_svc.core.request import Request
from scheduler_svc.core.three_queue.lane_state import LaneState
from scheduler_svc.core.three_queue.step_draft import RowKind, ScheduledRow, StepDraft
from segue.types import (
    CachedRequestData,
    Generation,
    NewRequestData,
    SchedulerOutput,
    StepKey,
    StepStats,
)


class PlanBuilder:
    def __init__(self, lane: LaneState) -> None:
        self._lane = lane

    def build(
        self, draft: StepDraft, key: StepKey, generation: Generation, traceparent: str
    ) -> SchedulerOutput:
        lane = self._lane
        known = [row for row in draft.rows if row.kind is RowKind.RUNNING]
        plan = SchedulerOutput(
            key.step_id,
            key.epoch,
            generation,
            scheduled_cached_reqs=_columns(known),
            preempted_req_ids=lane.preempted_ids,
            finished_req_ids=lane.finished_ids,
            swap_out=draft.swap_out,
            swap_in=draft.swap_in,
            num_lookahead_slots=draft.num_lookahead_slots,
            traceparent=traceparent,
            stats=self._stats(draft),
        )
        lane.preempted_ids, lane.finished_ids = [], []
        for row in draft.rows:
            if row.kind is not RowKind.RUNNING:
                self._add_whole(row, plan)
        self._advance(draft.rows, plan)
        return plan

    def _add_whole(self, row: ScheduledRow, plan: SchedulerOutput) -> None:
        request = row.request
        request.num_computed_tokens += row.num_cached
        if row.kind is RowKind.NEW:
            plan.scheduled_new_reqs.append(_whole(request))
            return
        if row.kind is RowKind.REPLACED:
            plan.preempted_req_ids.append(request.request_id)
        plan.scheduled_resumed_reqs.append(_whole(request))

    def _advance(self, rows: list[ScheduledRow], plan: SchedulerOutput) -> None:
        """The step counts as computed from now on; who reaches its last token samples."""
        journal = self._lane.journal
        counts, output_indices = plan.num_scheduled_tokens, plan.output_indices
        for row in rows:
            request, num_tokens = row.request, row.num_tokens
            request_id = request.request_id
            computed = request.num_computed_tokens + num_tokens
            counts[request_id] = num_tokens
            request.num_computed_tokens = computed
            request.num_in_flight_tokens += num_tokens
            num_known = request.num_tokens
            if num_tokens != 1 or computed < num_known or request.is_prefill_chunk:
                request.is_prefill_chunk = computed < num_known
                journal.requests[request_id] = request
            if computed >= num_known:
                output_indices[request_id] = num_known - request.num_prompt_tokens
        journal.note_planned(counts, (row.request for row in rows))

    def _stats(self, draft: StepDraft) -> StepStats:
        lane = self._lane
        return StepStats(
            num_running=len(lane.running),
            num_waiting=len(lane.waiting),
            num_swapped=len(lane.swapped),
            num_free_blocks=lane.tables.gpu.num_free,
            num_cached_blocks=len(lane.tables.gpu.cached),
            token_budget_left=draft.budget.num_tokens_left,
        )


def _columns(rows: list[ScheduledRow]) -> CachedRequestData:
    requests = [row.request for row in rows]
    return CachedRequestData(
        [request.request_id for request in requests],
        [row.new_block_ids for row in rows],
        [request.num_computed_tokens for request in requests],
    )


def _whole(request: Request) -> NewRequestData:
    return NewRequestData(
        request.request_id,
        tuple(request.all_token_ids),
        request.num_prompt_tokens,
        request.num_computed_tokens,
        tuple(request.block_ids),
        request.submission.sampling_params,
        request.submission.choice,
        request.submission.adapter,
    )
