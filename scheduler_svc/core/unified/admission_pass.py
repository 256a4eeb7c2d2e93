"""Admitting waiting requests while budget and memory last (specification 6).

Knows nothing about why a request waits (rules do). Invariant: no one is admitted in a step that
preempted somebody; lack of memory or budget at the head stops everything behind it.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler_svc.core.block_pool import KVCacheBlock
from scheduler_svc.core.events import PauseState
from scheduler_svc.core.request import Request, RequestStatus
from scheduler_svc.core.request_queue import RequestQueue
from scheduler_svc.core.rules.admission import AdmissionRule, Verdict
from scheduler_svc.core.unified.lane_state import LaneState
from scheduler_svc.core.unified.prefix_stats import PrefixStats
from scheduler_svc.core.unified.step_draft import StepDraft


class AdmissionPass:
    def __init__(
        self, lane: LaneState, rules: Sequence[AdmissionRule], prefix_stats: PrefixStats
    ) -> None:
        self._lane = lane
        self._config = lane.config
        self._rules = rules
        self._prefix_stats = prefix_stats
        self._draft_slots = lane.config.draft_slots_per_request

    def run(self, draft: StepDraft, pause_state: PauseState) -> None:
        """Look at the head again and again; those skipped go back to the front, in order."""
        if draft.preempted or pause_state is PauseState.PAUSED_ALL:
            return
        skipped: list[tuple[RequestQueue, Request]] = []
        while draft.token_budget > 0 and draft.input_budget > self._draft_slots:
            queue = self._next_queue(pause_state)
            if queue is None or self._is_full():
                break
            request = queue.peek()
            verdict = self._verdict(request, draft)
            if verdict is Verdict.PASS:
                verdict = self._admit(queue, request, draft)
            if verdict is Verdict.STOP:
                break
            if verdict is Verdict.SKIP:
                skipped.append((queue, queue.pop()))
                request.is_deferred = True
        for queue, request in reversed(skipped):
            queue.prepend(request)

    def _next_queue(self, pause_state: PauseState) -> RequestQueue | None:
        if len(self._lane.holding):
            return self._lane.holding
        if pause_state is PauseState.UNPAUSED and len(self._lane.waiting):
            return self._lane.waiting
        return None

    def _is_full(self) -> bool:
        limit = self._config.max_num_active_seqs
        return len(self._lane.running) >= (self._config.max_num_seqs if limit is None else limit)

    def _verdict(self, request: Request, draft: StepDraft) -> Verdict:
        for rule in self._rules:
            verdict = rule.check(request, draft)
            if verdict is not Verdict.PASS:
                return verdict
        return Verdict.PASS

    def _admit(self, queue: RequestQueue, request: Request, draft: StepDraft) -> Verdict:
        """Prefix look-up, tokens, blocks: PASS if the request runs now, else STOP."""
        kv = self._lane.kv
        hits: list[KVCacheBlock] = []
        if request.num_computed_tokens == 0:
            hits = kv.get_computed_blocks(request)
        computed = request.num_computed_tokens + len(hits) * self._config.block_size
        num_tokens = self._num_tokens(request, computed, draft)
        if num_tokens == 0:
            return Verdict.STOP
        kept = self._config.num_watermark_blocks if self._lane.running else 0
        if self._config.scheduler_reserve_full_isl and not kv.can_hold_whole(request, hits, kept):
            return Verdict.STOP
        blocks = kv.allocate_slots(
            request,
            num_tokens,
            hits,
            num_lookahead_tokens=self._config.num_lookahead_tokens,
            num_kept_blocks=kept,
        )
        if blocks is None:
            return Verdict.STOP
        queue.pop()
        is_resumed = request.status is RequestStatus.PREEMPTED
        num_hit_tokens = len(hits) * self._config.block_size
        if kv.reads_cache(request):
            self._prefix_stats.add(request, num_hit_tokens)
        if request.num_cached_tokens is None:
            request.num_cached_tokens = computed
        request.num_computed_tokens = computed
        self._lane.start_running(request)
        draft.spend(request.request_id, num_tokens, self._draft_slots)
        (draft.resumed if is_resumed else draft.new).append(request)
        return Verdict.PASS

    def _num_tokens(self, request: Request, computed: int, draft: StepDraft) -> int:
        """Tokens for this step; 0 if an unchunked prompt does not fit."""
        budget = min(draft.token_budget, draft.input_budget - self._draft_slots)
        num_tokens = len(request.all_token_ids) - computed
        if 0 < draft.long_prefill_cap < num_tokens:
            num_tokens = draft.long_prefill_cap
        if not self._config.enable_chunked_prefill and num_tokens > budget:
            return 0
        return min(num_tokens, budget)
