"""From a drafted step to its `SchedulerOutput`, and what follows for its requests.

Knows nothing about budgets or blocks. Invariant: what is built says all that the executor needs to
know, once (rule 3); `num_computed_tokens` counts this step's tokens from now on (spec 2.7).
Where drafts overlap with planning, an output index is the highest possible: only the executor knows
how many were accepted.
"""

from __future__ import annotations

from scheduler_svc.core.request import Request
from scheduler_svc.core.rules.rule import RuleBook
from scheduler_svc.core.unified.lane_state import LaneState
from scheduler_svc.core.unified.step_draft import StepDraft
from segue.types import (
    CachedRequestData,
    Generation,
    NewRequestData,
    SchedulerOutput,
    StepKey,
    StepStats,
)


class PlanBuilder:
    def __init__(self, lane: LaneState, rules: RuleBook) -> None:
        self._lane = lane
        self._rules = rules
        self._is_async = lane.config.async_scheduling
        self._num_spec_tokens = lane.config.num_spec_tokens

    def build(
        self, draft: StepDraft, key: StepKey, generation: Generation, traceparent: str
    ) -> SchedulerOutput:
        lane = self._lane
        for planned in self._rules.planned:
            planned(draft)
        plan = SchedulerOutput(
            key.step_id,
            key.epoch,
            generation,
            scheduled_new_reqs=[_whole(request) for request in draft.new],
            scheduled_resumed_reqs=[_whole(request) for request in draft.resumed],
            scheduled_cached_reqs=self._columns(draft),
            num_scheduled_tokens=draft.num_scheduled_tokens,
            draft_token_ids=draft.drafts,
            preempted_req_ids=lane.preempted_ids,
            finished_req_ids=lane.finished_ids,
            traceparent=traceparent,
            stats=self._stats(draft),
        )
        lane.preempted_ids, lane.finished_ids = [], []
        self._advance(draft, plan.output_indices, key.step_id)
        return plan

    def _columns(self, draft: StepDraft) -> CachedRequestData:
        request_ids = list(draft.num_scheduled_tokens)[: len(draft.running)]
        if draft.new_blocks:
            new_blocks = draft.new_blocks
            block_ids = [new_blocks.get(request_id, ()) for request_id in request_ids]
        else:
            block_ids: list[tuple[int, ...]] = [()] * len(request_ids)
        computed = [request.num_computed_tokens for request in draft.running]
        return CachedRequestData(request_ids, block_ids, computed)

    def _advance(self, draft: StepDraft, output_indices: dict[str, int], step_id: int) -> None:
        """The step counts as computed from now on; who reaches its last token samples."""
        counts = draft.num_scheduled_tokens
        scheduled = draft.running
        if draft.new or draft.resumed:
            admitted = {r.request_id: r for r in (*draft.new, *draft.resumed)}
            rest = list(counts)[len(scheduled) :]
            scheduled = [*scheduled, *[admitted[request_id] for request_id in rest]]
        journal = self._lane.journal
        num_placeholders = 1 if self._is_async else 0
        for request, (request_id, num_tokens) in zip(scheduled, counts.items(), strict=True):
            computed = request.num_computed_tokens + num_tokens
            request.num_computed_tokens = computed
            request.num_in_flight_tokens += num_tokens
            num_known = request.num_tokens + request.num_output_placeholders
            if num_tokens != 1 or computed < num_known or request.is_prefill_chunk:
                request.is_prefill_chunk = computed < num_known
                journal.requests[request_id] = request
            if computed < num_known:
                continue
            output_indices[request_id] = num_known - request.num_prompt_tokens
            request.num_output_placeholders += num_placeholders
        journal.note_planned(counts, scheduled)
        self._lane.in_flight[step_id] = scheduled
        if self._rules.samples or (self._is_async and self._num_spec_tokens):
            journal.requests.update(zip(counts, scheduled, strict=True))
            self._after_sampling(draft, scheduled, output_indices)

    def _after_sampling(
        self, draft: StepDraft, scheduled: list[Request], output_indices: dict[str, int]
    ) -> None:
        for request in scheduled:
            request_id = request.request_id
            if request_id not in output_indices:
                continue
            for samples in self._rules.samples:
                samples(request, draft)
            if self._is_async and self._num_spec_tokens:
                request.num_output_placeholders += len(draft.drafts.get(request_id, ()))
                request.spec_token_ids = [-1] * self._num_spec_tokens

    def _stats(self, draft: StepDraft) -> StepStats:
        lane = self._lane
        return StepStats(
            num_running=len(lane.running),
            num_waiting=len(lane.waiting) + len(lane.holding),
            num_free_blocks=lane.kv.pool.num_free_blocks,
            num_cached_blocks=lane.kv.pool.num_cached_hashes,
            token_budget_left=draft.token_budget,
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
