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
        plan = SchedulerOutput(
            key.step_id,
            key.epoch,
            generation,
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
            self._add(row, plan)
        return plan

    def _add(self, row: ScheduledRow, plan: SchedulerOutput) -> None:
        request = row.request
        request.num_computed_tokens += row.num_cached
        match row.kind:
            case RowKind.NEW:
                plan.scheduled_new_reqs.append(_whole(request))
            case RowKind.RUNNING if not row.has_new_table:
                self._append_column(row, plan.scheduled_cached_reqs)
            case _:
                if row.has_new_table:  # the executor has it with another table
                    plan.preempted_req_ids.append(request.request_id)
                plan.scheduled_resumed_reqs.append(_whole(request))
        plan.num_scheduled_tokens[request.request_id] = row.num_tokens
        request.num_computed_tokens += row.num_tokens
        request.num_in_flight_tokens += row.num_tokens
        request.is_prefill_chunk = request.num_computed_tokens < request.num_tokens
        if not request.is_prefill_chunk:
            plan.output_indices[request.request_id] = request.num_output_tokens
        self._lane.journal.requests[request.request_id] = request

    def _append_column(self, row: ScheduledRow, columns: CachedRequestData) -> None:
        request = row.request
        columns.request_ids.append(request.request_id)
        columns.new_block_ids.append(tuple(request.block_ids[row.num_blocks_before :]))
        columns.num_computed_tokens.append(request.num_computed_tokens)

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
