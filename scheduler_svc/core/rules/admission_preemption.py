"""A waiting request may preempt a running one that it outranks (`preempt_for_admission`).

vLLM lets it wait until a seat or blocks are free, however unimportant those are that hold them.
Here, before a step serves anybody, the first request that could be admitted looks for a victim: the
least important running one that it strictly outranks, in priority and in the order with ageing.
That happens if a seat or blocks are all that it lacks, and if all such victims together would make
room. Nobody is scheduled at that time, so a victim was not scheduled in the same step and nobody
has hit its blocks (PROTOCOL.md H20); it cannot come back in the same step either.

Invariant: at most one victim in a step, and no cycle. Who outranks whom never changes, so no chain
of preemptions of this kind leads back to who began it. A victim stands behind its displacer in the
queue, and passes it only if the displacer was admitted, or waits for an adapter. So, adapters
apart, one request displaces another at most once, and once more for each time that it was itself
preempted.
Knows nothing about token budgets: who lacks only those waits.
"""

from __future__ import annotations

from collections import Counter

from scheduler_svc.core.kv_cache_manager import AdmissionNeed
from scheduler_svc.core.priority import priority_order
from scheduler_svc.core.request import GrammarState, Request, RequestStatus
from scheduler_svc.core.rules.rule import Rule, Verdict
from scheduler_svc.core.rules.stale_output import waits_for_output
from scheduler_svc.core.unified.lane_state import LaneState
from scheduler_svc.core.unified.step_draft import StepDraft


class AdmissionPreemption(Rule):
    def __init__(self, lane: LaneState) -> None:
        self._lane = lane
        self._config = config = lane.config
        self._order = priority_order(config)
        limit = config.max_num_active_seqs
        self._num_seats = config.max_num_seqs if limit is None else limit
        self.victim: Request | None = None  # both of this step
        self.displacer: Request | None = None

    def begin_step(self, draft: StepDraft) -> None:
        self.victim = self.displacer = None
        request = self._first_admissible() if draft.is_admitting else None
        if request is None:
            return
        outranked = [running for running in self._lane.running if self._outranks(request, running)]
        if outranked and self._can_make_room(request, outranked, draft):
            self.victim = max(outranked, key=lambda running: self._order(running)[:2])
            self.displacer = request
            self._lane.running.remove(self.victim)
            self._lane.preempt(self.victim)

    def check(self, request: Request, draft: StepDraft) -> Verdict:
        """Whoever stands behind the victim is not more important than it, and waits as well."""
        del draft
        return Verdict.STOP if request is self.victim else Verdict.PASS

    def _first_admissible(self) -> Request | None:
        """The first that no rule holds back; None if there is none, or a rule stops before it."""
        for request in self._lane.waiting:
            if not _is_ready(request):
                continue
            if self._has_adapter_slot(request):
                return request
            if self._config.max_loras_stops_admission:
                return None
        return None

    def _has_adapter_slot(self, request: Request) -> bool:
        """Whoever is served, and whoever the victim is: at most these adapters are in use."""
        adapter, max_loras = request.submission.adapter, self._config.max_loras
        if not adapter or not max_loras:
            return True
        in_use = {running.submission.adapter for running in self._lane.running} - {""}
        return len(in_use | {adapter}) <= max_loras

    def _outranks(self, request: Request, running: Request) -> bool:
        if self._config.defer_block_free and running.num_in_flight_tokens:
            return False  # its blocks would not be free now
        if request.submission.priority >= running.submission.priority:
            return False
        return self._order(request) < self._order(running)

    def _can_make_room(self, request: Request, outranked: list[Request], draft: StepDraft) -> bool:
        """Whether the request lacks a seat or blocks, and has them without all of these."""
        pool = self._lane.kv.pool
        hits = self._lane.kv.get_computed_blocks(request)
        num_lacking = self._num_needed_blocks(request, AdmissionNeed(hits), draft)
        num_lacking -= pool.num_free_blocks
        if num_lacking <= 0 and len(self._lane.running) < self._num_seats:
            return False
        held = Counter(block_id for running in outranked for block_id in running.block_ids)
        for block in hits:
            held.pop(block.block_id, None)  # freed, it would be taken again at once
        num_freed = sum(pool.blocks[block_id].ref_cnt == count for block_id, count in held.items())
        return num_lacking <= num_freed

    def _num_needed_blocks(self, request: Request, need: AdmissionNeed, draft: StepDraft) -> int:
        """At most this many: it might get a smaller chunk of its prompt."""
        config, kv = self._config, self._lane.kv
        num_tokens, num_hit = request.num_tokens, len(need.hits) * config.block_size
        chunk = min(num_tokens - num_hit, draft.long_prefill_cap or draft.token_budget)
        end = num_hit + min(chunk, draft.token_budget) + config.num_lookahead_tokens
        if config.scheduler_reserve_full_isl:
            end = max(end, num_tokens)
        watermark = config.num_watermark_blocks
        return need.num_blocks_beyond(kv.num_blocks_for(end), request) + watermark


def _is_ready(request: Request) -> bool:
    if request.status is RequestStatus.WAITING_FOR_GRAMMAR:
        return request.grammar_state is GrammarState.READY
    return not waits_for_output(request)
