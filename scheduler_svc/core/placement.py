"""Which lane a request goes to: where its prefix is cached, else where least is to be done.

Knows nothing about connections or load averages: placement is a function of committed state, so
that a restart places the same way. Invariant: with one open lane, placement is the identity.
"""

from __future__ import annotations

from collections.abc import Iterable

from scheduler_svc.core.lane import Lane, LaneStatus
from scheduler_svc.core.request import Request


def choose_lane(request: Request, lanes: Iterable[Lane]) -> Lane | None:
    """The active lane with the longest cached prefix; among equals the least loaded, then by id."""
    best: Lane | None = None
    best_rank: tuple[int, int, str] | None = None
    for lane in lanes:
        if lane.status is not LaneStatus.ACTIVE:
            continue
        assert lane.policy is not None
        hit = lane.policy.num_cached_prefix_tokens(request)
        rank = (-hit, lane.policy.num_unfinished(), lane.executor_id)
        if best_rank is None or rank < best_rank:
            best, best_rank = lane, rank
    return best
