"""A queue that can be changed at both ends and put into another order, with ranks that are stored.

Knows nothing about why. Invariant, after `settle`: each request in it has `queue` set to the
queue's name, and ranks grow from the first to the last; nothing else was noted in the journal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from scheduler_svc.core.journal import Journal
from scheduler_svc.core.request import QueueName, Request


class RankedQueue(deque[Request]):
    """Passes use it as a deque; `settle` then writes down what has become of the order."""

    def __init__(self, name: QueueName, journal: Journal) -> None:
        super().__init__()
        self.name = name
        self._journal = journal

    def replace(self, requests: Iterable[Request]) -> None:
        ordered = list(requests)
        self.clear()
        self.extend(ordered)

    def add(self, request: Request) -> None:
        self._place(request, self[-1].queue_rank + 1 if self else 0)
        self.append(request)

    def prepend(self, request: Request) -> None:
        self._place(request, self[0].queue_rank - 1 if self else 0)
        self.appendleft(request)

    def settle(self) -> None:
        """Ranks change only where the order asks for it; those of newcomers in front go down."""
        num_new = next((i for i, request in enumerate(self) if request.queue is self.name), 0)
        first_rank = self[num_new].queue_rank if self else 0
        rank: int | None = None
        for index, request in enumerate(self):
            if index < num_new:
                wanted = first_rank - num_new + index
            elif request.queue is self.name and (rank is None or request.queue_rank > rank):
                wanted = request.queue_rank
            else:
                wanted = 0 if rank is None else rank + 1
            self._place(request, wanted)
            rank = wanted

    def _place(self, request: Request, rank: int) -> None:
        if request.queue is self.name and request.queue_rank == rank:
            return
        request.queue, request.queue_rank = self.name, rank
        self._journal.requests[request.request_id] = request
