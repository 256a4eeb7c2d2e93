"""Who is more important under PRIORITY, and how waiting makes a request more important (ageing).

Each `priority_aging_ms` that a request has waited counts as one level of priority. All age at the
same rate, so the difference between two never changes, and their order can be told from priority
and arrival alone: no clock is needed, and a queue once sorted stays sorted.

Invariant (the bound): a request of priority p that arrived at a is never behind one of priority q
that arrived later than a + (p - q) * priority_aging_ms. So only those that arrive in a bounded time
can pass it, in the queue as well as when a victim is chosen: nobody starves. The arrival is what
the gateway's clock said, so the bound is as good as the gateways' clocks agree.
Knows nothing about queues.
"""

from __future__ import annotations

from collections.abc import Callable

from scheduler_svc.core.request import Request
from scheduler_svc.core.scheduler_config import SchedulerConfig

SortKey = Callable[[Request], tuple[int, int, str]]
"""The smallest is served first. A request's key never changes, and no two are equal."""


def priority_order(config: SchedulerConfig) -> SortKey:
    """By (priority, arrival, id), or with ageing by (arrival and its priority as time, ...)."""
    aging_ms = config.priority_aging_ms
    if not aging_ms:
        return _by_priority

    def by_aged_priority(request: Request) -> tuple[int, int, str]:
        priority, arrival_ms, request_id = request.priority_key
        return arrival_ms + priority * aging_ms, arrival_ms, request_id

    return by_aged_priority


def _by_priority(request: Request) -> tuple[int, int, str]:
    return request.priority_key
