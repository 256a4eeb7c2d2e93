"""Admitting waiting requests while budget and memory last (specification 6).

Knows nothing about why a request waits (rules do). Invariant: no one is admitted in a step that
preempted somebody; lack of memory or budget at the head stops everything behind it.
"""

from __future__ import annotations

from scheduler_svc.core.block_pool import KVCacheBlock
from scheduler_svc.core.events import PauseState
from scheduler_svc.core.kv_cache_manager import AdmissionNeed
from scheduler_svc.core.request import Request, RequestStatus
from scheduler_svc.core.request_queue import RequestQueue
from scheduler_svc.core.rules.draft_padding import DraftPadding
from scheduler_svc.core.rules.remote_kv import NOTHING
from scheduler_svc.core.rules.rule import Verdict
from scheduler_svc.core.unified.candidate import Candidate
from scheduler_svc.core.unified.features import Features
from scheduler_svc.core.unified.lane_state import LaneState
from scheduler_svc.core.unified.prefix_stats import PrefixStats
from scheduler_svc.core.unified.step_draft import StepDraft


class AdmissionPass:
    def __init__(self, lane: LaneState, features: Features, prefix_stats: PrefixStats) -> None:
        self._lane = lane
        self._config = lane.config
        self._rules = features.rules
        self._remote_kv = features.remote_kv
        self._padding = DraftPadding(lane.config)
        self._prefix_stats = prefix_stats
        self._draft_slots = lane.config.draft_slots_per_request
        limit = lane.config.max_num_active_seqs
        self._max_running = lane.config.max_num_seqs if limit is None else limit

    def run(self, draft: StepDraft, pause_state: PauseState) -> None:
        """Look at the head again and again; those skipped go back to the front, in order."""
        if draft.preempted or pause_state is PauseState.PAUSED_ALL:
            return
        for begin in self._rules.begin_admission:
            begin(draft)
        while draft.token_budget > 0 and draft.input_budget > self._draft_slots:
            queue = self._next_queue(pause_state)
            if queue is None or len(self._lane.running) >= self._max_running:
                break
            request = queue.peek()
            verdict = self._consider(queue, request, draft)
            if verdict is Verdict.STOP:
                break
            if verdict is Verdict.SKIP:
                queue.pop()
                request.is_deferred = True
                draft.put_aside.append(request)
            elif verdict is not Verdict.PASS:
                raise TypeError(f"a rule's check returned {verdict!r}, which is no Verdict")
        for request in reversed(draft.put_aside):
            self._lane.queue_for(request).prepend(request)
        for end in self._rules.end_admission:
            end(draft)

    def _next_queue(self, pause_state: PauseState) -> RequestQueue | None:
        if len(self._lane.holding):
            return self._lane.holding
        if pause_state is PauseState.UNPAUSED and len(self._lane.waiting):
            return self._lane.waiting
        return None

    def _consider(self, queue: RequestQueue, request: Request, draft: StepDraft) -> Verdict:
        """PASS: it runs now. SKIP: it waits on, maybe for a load that begins now."""
        for check in self._rules.check:
            verdict = check(request, draft)
            if verdict is not Verdict.PASS:
                return verdict
        candidate = self._look_up(request)
        if candidate is None:
            return Verdict.SKIP
        if not candidate.loads_async:
            for check_computed in self._rules.check_computed:
                verdict = check_computed(request, candidate.num_computed_tokens, draft)
                if verdict is not Verdict.PASS:
                    return verdict
            if not self._set_num_tokens(candidate, draft):
                return Verdict.STOP
        if not self._allocate(candidate, draft):
            for left in self._rules.left:
                left(request)
            return Verdict.STOP
        return self._start(queue, candidate, draft)

    def _look_up(self, request: Request) -> Candidate | None:
        """Local hits, then what a connector has; None if that is not known yet."""
        if request.num_computed_tokens > 0:
            return Candidate(request, False, [], 0, False, request.num_computed_tokens)
        hits: list[KVCacheBlock] = self._lane.kv.get_computed_blocks(request)
        num_local = len(hits) * self._config.block_size
        external = NOTHING
        if self._remote_kv is not None:
            answer = self._remote_kv.look_up(request, num_local)
            if answer is None:
                return None
            external = answer
        num_computed = num_local + external.num_tokens
        return Candidate(request, True, hits, external.num_tokens, external.is_async, num_computed)

    def _set_num_tokens(self, candidate: Candidate, draft: StepDraft) -> bool:
        """How many tokens it gets in this step; False if it can have none, so nobody can."""
        budget = min(draft.token_budget, draft.input_budget - self._draft_slots)
        num_computed = candidate.num_computed_tokens
        num_tokens = candidate.request.num_tokens - num_computed
        candidate.num_pad_drafts = self._padding.num_drafts(num_tokens, num_computed, draft)
        if candidate.num_pad_drafts:
            num_tokens += candidate.num_pad_drafts
            if num_tokens > budget:
                return False
        if 0 < draft.long_prefill_cap < num_tokens:
            num_tokens = draft.long_prefill_cap
        if not self._config.enable_chunked_prefill and num_tokens > budget:
            return False
        num_tokens = min(num_tokens, budget)
        for clamp in self._rules.clamp:
            num_tokens = clamp(candidate.request, num_computed, num_tokens)
        candidate.num_new_tokens = num_tokens
        return num_tokens > 0

    def _allocate(self, candidate: Candidate, draft: StepDraft) -> bool:
        config, kv, request = self._config, self._lane.kv, candidate.request
        watermark = config.num_watermark_blocks if self._lane.running else 0
        need = AdmissionNeed(
            candidate.hits,
            candidate.num_external_tokens,
            num_lookahead_tokens=config.num_lookahead_tokens,
            num_kept_blocks=watermark,
        )
        if config.scheduler_reserve_full_isl and not kv.can_hold_whole(request, need, watermark):
            return False
        if candidate.loads_async:
            assert self._remote_kv is not None
            need.num_lookahead_tokens = 0
            need.num_kept_blocks += self._remote_kv.num_reserved_blocks(draft)
            need.registers = False
        if not kv.allocate_admission(request, candidate.num_new_tokens, need):
            return False
        if self._remote_kv is not None:
            self._remote_kv.connector.allocated(request, candidate.num_external_tokens)
        return True

    def _start(self, queue: RequestQueue, candidate: Candidate, draft: StepDraft) -> Verdict:
        request = candidate.request
        if candidate.was_looked_up and self._lane.kv.reads_cache(request):
            self._prefix_stats.add(request, len(candidate.hits) * self._config.block_size)
        if request.num_cached_tokens is None:
            request.num_cached_tokens = candidate.num_computed_tokens
        if candidate.loads_async:
            assert self._remote_kv is not None
            self._remote_kv.start_load(request, candidate.num_computed_tokens)
            return Verdict.SKIP
        queue.pop()
        is_resumed = request.status is RequestStatus.PREEMPTED
        request.num_computed_tokens = candidate.num_computed_tokens
        self._lane.start_running(request)
        draft.spend(request.request_id, candidate.num_new_tokens, self._draft_slots)
        (draft.resumed if is_resumed else draft.new).append(request)
        if candidate.num_pad_drafts:
            num_drafts = candidate.num_new_tokens - 1
            draft.drafts[request.request_id] = [-1] * num_drafts
        draft.has_sync_load = draft.has_sync_load or candidate.num_external_tokens > 0
        for scheduled in self._rules.scheduled:
            scheduled(request, draft)
        return Verdict.PASS
