"""A scheduling policy in one file: the shortest request that waits is admitted first.

    segue serve --policy examples.shortest_job_first:ShortestJobFirst

All else is `unified`: budget, chunked prefill, prefix caching, preemption, recovery. The length of
a request is its prompt plus the most output that it may ask for, which is known when it arrives
and never changes. Knows nothing about how long it really gets. A stream of short requests starves
a long one (docs/policies.md says what to do).
"""

from __future__ import annotations

from scheduler_svc.core.request import QueueName, Request
from scheduler_svc.core.request_queue import RequestQueue, SortedRequestQueue
from scheduler_svc.core.unified.scheduler import UnifiedScheduler


class ShortestJobFirst(UnifiedScheduler):
    def make_queue(self, name: QueueName) -> RequestQueue:
        return SortedRequestQueue(name, self.journal, by_length)


def by_length(request: Request) -> tuple[int, int, str]:
    return request.max_total_tokens, request.submission.arrival_unix_ms, request.request_id
