"""Serving the running requests, in order, and preempting when blocks run out (specification 3, 5).

Knows nothing about waiting requests. Invariant: whoever is scheduled has blocks for all tokens that
it was given; a victim has nothing left of this step.
"""

from __future__ import annotations

from scheduler_svc.core.kv_cache_manager import KVCacheManager
from scheduler_svc.core.priority import priority_order
from scheduler_svc.core.request import Request
from scheduler_svc.core.unified.features import Features
from scheduler_svc.core.unified.lane_state import LaneState
from scheduler_svc.core.unified.step_draft import StepDraft


class RunningPass:
    def __init__(self, lane: LaneState, features: Features) -> None:
        config, rules = lane.config, features.rules
        self._lane = lane
        self._config = config
        self._rules = rules
        self._deferred_frees = features.deferred_frees
        self._kv: KVCacheManager = lane.kv
        self._draft_slots = config.draft_slots_per_request
        self._is_priority = config.policy == "priority"
        self._order = priority_order(config)
        self._cursor = 0
        has_rules = rules.may_run or rules.clamp or rules.scheduled
        has_drafts = config.num_spec_tokens or config.num_lookahead_tokens or self._draft_slots
        # Computed tokens are ahead of the known ones by at most one for each step in flight.
        self._near_model_len = config.max_model_len - config.max_steps_in_flight
        self._has_plain_decodes = not (has_rules or has_drafts)

    def run(self, draft: StepDraft) -> None:
        """Walk `running` from the front. n = 0 is passed over; no room ends the walk."""
        running = self._lane.running
        self._cursor = 0
        while True:
            if self._has_plain_decodes:
                self._serve_plain_decodes(draft)
            if self._cursor >= len(running) or draft.token_budget <= 0:
                break
            if draft.input_budget <= self._draft_slots:
                break
            request = running[self._cursor]
            self._cursor += 1
            if not self._may_run(request, draft):
                continue
            num_tokens = self._num_tokens(request, draft)
            if num_tokens > 0 and not self._allocate(request, num_tokens, draft):
                break

    def _serve_plain_decodes(self, draft: StepDraft) -> None:
        """Serve what wants one token and has room for it, up to the first that is different.

        This is nearly all of a step, and the rest of this file in short: a slot for the token is
        there unless the computed tokens fill their blocks, no block becomes full unless the known
        tokens fill theirs, and no limit is reached unless it is near.
        """
        first = self._cursor
        counts = draft.num_scheduled_tokens
        block_size, near_model_len = self._config.block_size, self._near_model_len
        served: list[Request] = []
        end = first + min(draft.token_budget, draft.input_budget)
        for request in self._lane.running[first:end]:
            num_known = request.num_tokens
            computed = request.num_computed_tokens
            if (
                num_known + request.num_output_placeholders - computed != 1
                or num_known >= near_model_len
                or num_known >= request.max_total_tokens - 1
            ):
                break
            if not computed % block_size and not self._append_block(request, draft):
                break
            if not num_known % block_size:
                self._register(request, computed + 1, draft)
            counts[request.request_id] = 1
            served.append(request)
        draft.running += served
        num_served = len(served)
        self._cursor += num_served
        draft.token_budget -= num_served
        draft.input_budget -= num_served

    def _append_block(self, request: Request, draft: StepDraft) -> bool:
        if len(request.block_ids) * self._config.block_size > request.num_computed_tokens:
            return True  # a load that failed has left it more than it has computed
        block_id = self._kv.append_block(request)
        if block_id is None:
            return False
        draft.new_blocks[request.request_id] = (block_id,)
        return True

    def _register(self, request: Request, end: int, draft: StepDraft) -> None:
        """The known tokens fill a block, which the tokens computed up to `end` may be behind."""
        num_registered = request.num_registered_blocks
        self._kv.register_full_blocks(request, min(end, request.num_tokens))
        if request.num_registered_blocks != num_registered:
            draft.registered_before[request.request_id] = num_registered

    def _may_run(self, request: Request, draft: StepDraft) -> bool:
        return all(may_run(request, draft) for may_run in self._rules.may_run)

    def _num_tokens(self, request: Request, draft: StepDraft) -> int:
        """How far the request wants to catch up, within the step's limits; 0: not in this step."""
        computed = request.num_computed_tokens
        placeholders = request.num_output_placeholders
        if placeholders > 0 and computed + 2 - placeholders >= request.max_total_tokens:
            return 0  # all drafts rejected, the steps in flight reach max_tokens already
        num_tokens = request.num_tokens + len(request.spec_token_ids)
        num_tokens += placeholders - computed
        if 0 < draft.long_prefill_cap < num_tokens:
            num_tokens = draft.long_prefill_cap
        num_tokens = max(
            0,
            min(
                num_tokens,
                draft.token_budget,
                draft.input_budget - self._draft_slots,
                self._config.max_model_len - computed - 1,
            ),
        )
        for clamp in self._rules.clamp:
            num_tokens = clamp(request, computed, num_tokens)
        return num_tokens

    def _allocate(self, request: Request, num_tokens: int, draft: StepDraft) -> bool:
        """Give the request its blocks, at the cost of others if need be; false: the walk ends."""
        num_registered = request.num_registered_blocks
        while True:
            blocks = self._kv.allocate_slots(request, num_tokens, self._config.num_lookahead_tokens)
            if blocks is not None:
                break
            victim = self._choose_victim()
            if self._must_wait_for_frees(victim):
                return False
            self._preempt(victim, draft)
            if victim is request:
                return False
        request_id = request.request_id
        draft.spend(request_id, num_tokens, self._draft_slots)
        draft.running.append(request)
        if request.num_registered_blocks != num_registered:
            draft.registered_before[request_id] = num_registered
        draft.has_prefill_chunk = draft.has_prefill_chunk or request.is_prefill_chunk
        if blocks:
            draft.new_blocks[request_id] = tuple([block.block_id for block in blocks])
        if request.spec_token_ids:
            self._schedule_drafts(request, num_tokens, draft)
        for scheduled in self._rules.scheduled:
            scheduled(request, draft)
        return True

    def _schedule_drafts(self, request: Request, num_tokens: int, draft: StepDraft) -> None:
        known = request.num_tokens + request.num_output_placeholders
        num_drafts = num_tokens + request.num_computed_tokens - known
        if num_drafts > 0:
            draft.drafts[request.request_id] = request.spec_token_ids[:num_drafts]
        request.spec_token_ids = []

    def _must_wait_for_frees(self, victim: Request) -> bool:
        """Where frees are deferred, a victim in flight would not give its blocks now (11.4)."""
        frees = self._deferred_frees
        return frees is not None and victim.num_in_flight_tokens > 0

    def _choose_victim(self) -> Request:
        """FCFS: the last; PRIORITY: the least important of all.

        Of exact equals, as a call's choices are, vLLM takes the first (`strict`): it comes back as
        the last, so equals may displace each other in turn for ever. Here one is always the least.
        """
        running = self._lane.running
        if not self._is_priority:
            return running[-1]
        if self._config.strict:
            return max(running, key=lambda request: self._order(request)[:2])
        return max(running, key=self._order)

    def _preempt(self, victim: Request, draft: StepDraft) -> None:
        running = self._lane.running
        index = running.index(victim) if self._is_priority else len(running) - 1
        del running[index]
        if self._is_priority:
            if index < self._cursor:
                self._cursor -= 1
            if victim.request_id in draft.num_scheduled_tokens:
                self._undo(victim, draft)
        self._lane.preempt(victim)
        draft.preempted.append(victim)

    def _undo(self, victim: Request, draft: StepDraft) -> None:
        """Take back what the victim got in this step, also the hashes of KV never computed (H20).

        vLLM leaves those (`strict`).
        """
        draft.undo(victim, self._draft_slots)
        for undone in self._rules.undone:
            undone(victim, draft)
        first_registered = draft.registered_before.get(victim.request_id)
        if first_registered is not None and not self._config.strict:
            self._kv.unregister_from(victim, first_registered)
