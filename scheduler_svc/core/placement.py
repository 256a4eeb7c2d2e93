"""Which lane a request goes to: where its prefix is cached, else where least is to be done.

Knows nothing about connections or load averages: placement is a function of committed state, so
that a restart places the same way. Invariant: no lane gets a request that is too long for it.
"""

from __future__ import annotations

from collections.abc import Iterable

from scheduler_svc.core.lane import Lane, LaneStatus
from scheduler_svc.core.request import Request


def choose_lane(request: Request, lanes: Iterable[Lane]) -> Lane | None:
    """The active lane with the longest cached prefix; among equals the least loaded, then by id.

    Only those that can serve it to its end are asked, or as far as the largest of them can.
    """
    everywhere = list(lanes)
    lanes = [lane for lane in everywhere if lane.status is LaneStatus.ACTIVE]
    longest = max((lane.max_model_len for lane in lanes), default=0)
    if longest <= request.num_tokens + _num_tokens_to_come(request, everywhere):
        return None
    most = request.num_prompt_tokens + request.submission.sampling_params.max_tokens
    best: Lane | None = None
    best_rank: tuple[int, int, str] | None = None
    for lane in lanes:
        if lane.max_model_len < min(most, longest):
            continue
        assert lane.policy is not None
        hit = lane.policy.num_cached_prefix_tokens(request)
        rank = (-hit, lane.policy.num_unfinished(), lane.executor_id)
        if best_rank is None or rank < best_rank:
            best, best_rank = lane, rank
    return best


def _num_tokens_to_come(request: Request, lanes: Iterable[Lane]) -> int:
    """At most so many are in flight, and will be the request's wherever it is placed (H28)."""
    if request.num_in_flight_tokens == 0 or request.drop_stale_output:
        return 0
    request_id = request.request_id
    plans = [step.plan for lane in lanes for step in lane.planned]
    return sum(
        1 + len(plan.draft_token_ids.get(request_id, ()))
        for plan in plans
        if request_id in plan.output_indices
    )
