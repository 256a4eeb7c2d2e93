"""Forced preemption: who waits and is more important than who runs (specification 7).

Knows nothing about rows. Invariant: afterwards both queues are in the order of (priority, arrival);
nobody is preempted for the sake of one that is not strictly more important.
"""

from __future__ import annotations

from collections import deque

from scheduler_svc.core.request import Request
from scheduler_svc.core.three_queue.block_tables import AllocStatus, EngineFailure
from scheduler_svc.core.three_queue.lane_state import LaneState
from scheduler_svc.core.three_queue.step_draft import PreemptionMode, StepDraft
from scheduler_svc.core.three_queue.token_count import TokenCount


class PriorityPass:
    """V0 swaps victims out where it swaps at all, loses the list of what to copy, and fails when it
    finds them among those that wait. Unless `strict`, forced victims are recomputed, and nobody is
    forced out while swapped requests keep all prompts from being admitted anyway.
    """

    def __init__(self, lane: LaneState, token_count: TokenCount) -> None:
        self._lane = lane
        self._config = lane.config
        self._token_count = token_count

    def run(self, draft: StepDraft) -> None:
        lane = self._lane
        running = deque(sorted(lane.running, key=_priority))
        is_admission_blocked = bool(lane.swapped) and not self._config.strict
        if lane.waiting and not is_admission_blocked:
            candidate = lane.waiting.pop_first()
            if not candidate.drains_elsewhere:
                self._make_way(candidate, running, draft)
            lane.waiting.put_first([candidate])
        lane.waiting.replace(sorted(lane.waiting, key=_priority))
        lane.running.replace(running)

    def _make_way(self, candidate: Request, running: deque[Request], draft: StepDraft) -> None:
        """Preempt the least important, until the candidate fits or nobody is worse."""
        uncached, _ = self._token_count.of_waiting(candidate, draft.budget, chunks=False)
        while running and _priority(running[-1]) > _priority(candidate):
            has_room = self._lane.tables.can_allocate(candidate) is AllocStatus.OK
            if has_room and draft.budget.can_schedule(uncached):
                break
            victim = running.pop()
            draft.budget.remove(victim.request_id)
            if self._config.strict and self._config.swaps:
                raise EngineFailure(f"{victim.request_id} is swapped out among those that wait")
            self._lane.recompute(victim)
            draft.preemptions.append((victim.request_id, PreemptionMode.RECOMPUTE))
            self._lane.waiting.put_first([victim])


def _priority(request: Request) -> tuple[int, int]:
    return request.submission.priority, request.submission.arrival_unix_ms
