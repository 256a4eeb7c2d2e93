"""The order of the passes in a step: prompts or decodes, or decodes and then chunks of prompts.

Knows nothing about plans. Invariant: after a step was planned each queue's ranks are in its order,
and what was registered in the step counts as computed.
"""

from __future__ import annotations

from scheduler_svc.core.events import PauseState
from scheduler_svc.core.three_queue.adapter_limit import AdapterLimit
from scheduler_svc.core.three_queue.budget import SchedulingBudget
from scheduler_svc.core.three_queue.lane_state import LaneState
from scheduler_svc.core.three_queue.prefill_pass import PrefillPass
from scheduler_svc.core.three_queue.priority_pass import PriorityPass
from scheduler_svc.core.three_queue.prompt_delay import PromptDelay
from scheduler_svc.core.three_queue.running_pass import RunningPass
from scheduler_svc.core.three_queue.step_draft import StepDraft
from scheduler_svc.core.three_queue.swapped_pass import SwappedPass
from scheduler_svc.core.three_queue.token_count import TokenCount


class StepPlanner:
    def __init__(self, lane: LaneState) -> None:
        config = lane.config
        token_count = TokenCount(lane.tables)
        self._lane = lane
        self._config = config
        self._adapter_limit = AdapterLimit(config.max_loras)
        self.delay = PromptDelay(config.delay_factor)
        self._prefill_pass = PrefillPass(lane, token_count, self._adapter_limit, self.delay)
        self._priority_pass = PriorityPass(lane, token_count)
        self._running_pass = RunningPass(lane, token_count)
        self._swapped_pass = SwappedPass(lane, token_count, self._adapter_limit)

    def plan(self, pause_state: PauseState) -> StepDraft:
        """One step. Where it has nothing but requests given up, there may be more to do at once.

        V0 would see that in its next step; here nothing might happen that brings one about.
        """
        draft = self._begin()
        if pause_state is PauseState.PAUSED_ALL:
            return draft
        admits = pause_state is PauseState.UNPAUSED
        self._run_passes(draft, admits=admits)
        while not self._config.strict and draft.ignored and not draft.is_anything_done:
            again = self._begin()
            self._run_passes(again, admits=admits)
            if not again.ignored and not again.is_anything_done:
                break
            again.ignored[:0] = draft.ignored
            draft = again
        return draft

    def _begin(self) -> StepDraft:
        config, running = self._config, self._lane.running
        budget = SchedulingBudget(config.max_num_batched_tokens, config.max_num_seqs)
        chunks = config.enable_chunked_prefill
        if not chunks:
            for request in running:
                budget.add_seq(request.request_id)
        adapters = self._adapter_limit.in_use([] if chunks else list(running))
        return StepDraft(budget, chunks, adapters)

    def _run_passes(self, draft: StepDraft, *, admits: bool) -> None:
        lane = self._lane
        if self._config.enable_chunked_prefill:
            self._plan_decodes_first(draft, admits=admits)
        else:
            self._plan_prompts_or_decodes(draft, admits=admits)
        assert draft.budget.num_tokens_left >= 0
        assert draft.budget.num_seqs <= self._config.max_num_seqs
        lane.settle_queues()
        draft.order_batch()
        if self._config.enable_prefix_caching:
            served = [row.request.request_id for row in draft.rows]
            lane.tables.note_access(served, lane.clock_ms)
            draft.fresh_block_ids = set(lane.tables.gpu.fresh)
            lane.tables.gpu.end_step()

    def _plan_prompts_or_decodes(self, draft: StepDraft, *, admits: bool) -> None:
        """Specification 2. Prompts first, but none while a request is swapped out."""
        lane = self._lane
        if admits and not lane.swapped:
            self._prefill_pass.run(draft)
        if draft.new_prefills:
            lane.running.put_last(row.request for row in draft.new_prefills)
            return
        if admits and self._config.policy == "priority":
            self._priority_pass.run(draft)
        self._running_pass.run(draft)
        if not draft.has_preempted:
            self._swapped_pass.run(draft)
        lane.waiting.put_first(draft.recomputed[::-1])
        for rows in (draft.running_decodes, draft.swapped_decodes):
            lane.running.put_last(row.request for row in rows)
        lane.swapped.put_last(draft.swapped_out)
        assert not draft.num_prefills

    def _plan_decodes_first(self, draft: StepDraft, *, admits: bool) -> None:
        """Specification 3. Who found no budget stays in front, so with too many they take turns."""
        lane = self._lane
        self._running_pass.run(draft)
        if not draft.has_preempted:
            self._swapped_pass.run(draft)
        if admits:
            self._prefill_pass.run(draft)
        lane.waiting.put_first(draft.recomputed[::-1])
        for rows in (
            draft.swapped_decodes,
            draft.swapped_prefills,
            draft.running_decodes,
            draft.running_prefills,
            draft.new_prefills,
        ):
            lane.running.put_last(row.request for row in rows)
        lane.swapped.put_last(draft.swapped_out)
        if draft.num_prefills and not (draft.running_decodes or draft.swapped_decodes):
            draft.num_lookahead_slots = 0
