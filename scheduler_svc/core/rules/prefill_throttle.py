"""Prefills only in some steps, so that data-parallel ranks prefill together (specification 5).

Knows nothing about other ranks (the engine says when to hold back). Invariant: it never holds back
when nobody decodes, nor when the last pass without it could not admit all that waited.
"""

from __future__ import annotations

from scheduler_svc.core.request import Request
from scheduler_svc.core.rules.rule import Rule, Verdict
from scheduler_svc.core.unified.lane_state import LaneState
from scheduler_svc.core.unified.step_draft import StepDraft


class PrefillThrottle(Rule):
    def __init__(self, lane: LaneState) -> None:
        self._lane = lane
        self._is_effective = False
        self.is_requested = False
        self.was_capacity_bound = False

    def begin_step(self, draft: StepDraft) -> None:
        del draft
        self._is_effective = (
            self.is_requested
            and not self.was_capacity_bound
            and any(not request.is_prefill_chunk for request in self._lane.running)
        )

    def may_run(self, request: Request, draft: StepDraft) -> bool:
        del draft
        return not (self._is_effective and request.is_prefill_chunk)

    def check_computed(self, request: Request, num_computed: int, draft: StepDraft) -> Verdict:
        del draft
        if self._is_effective and num_computed < request.num_tokens - 1:
            return Verdict.STOP
        return Verdict.PASS

    def end_admission(self, draft: StepDraft) -> None:
        del draft
        if self._is_effective:
            return
        waiting = (*self._lane.waiting, *self._lane.holding)
        self.was_capacity_bound = any(not request.is_deferred for request in waiting)
