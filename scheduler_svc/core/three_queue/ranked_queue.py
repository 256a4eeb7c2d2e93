"""A queue that can be changed at both ends and put into another order, with ranks that are stored.

Knows nothing about why. Invariant, after `settle`: each request in it has `queue` set to the
queue's name, and ranks grow from the first to the last; nothing else was noted in the journal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice

from scheduler_svc.core.journal import Journal
from scheduler_svc.core.request import QueueName, Request


class RankedQueue:
    """Passes take from it and put back at will; `settle` writes down what has become of it."""

    def __init__(self, name: QueueName, journal: Journal) -> None:
        self.name = name
        self._journal = journal
        self._requests: deque[Request] = deque()
        self._is_settled = True

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    @property
    def first(self) -> Request:
        return self._requests[0]

    # Requests that come or go between two steps

    def add(self, request: Request) -> None:
        requests = self._requests
        self._place(request, requests[-1].queue_rank + 1 if requests else 0)
        requests.append(request)

    def prepend(self, request: Request) -> None:
        requests = self._requests
        self._place(request, requests[0].queue_rank - 1 if requests else 0)
        requests.appendleft(request)

    def remove(self, request: Request) -> None:
        self._requests.remove(request)

    def restore(self, request: Request) -> None:
        """Append a request whose `queue_rank` is known."""
        self._requests.append(request)

    # While a step is planned

    def pop_first(self) -> Request:
        return self._requests.popleft()

    def pop_last(self) -> Request:
        return self._requests.pop()

    def drop_first(self, count: int) -> None:
        for _ in range(count):
            self._requests.popleft()

    def put_first(self, requests: list[Request]) -> None:
        """In front of the others, in this order."""
        if requests:
            self._requests.extendleft(reversed(requests))
            self._is_settled = False

    def put_last(self, requests: Iterable[Request]) -> None:
        self._requests.extend(requests)
        self._is_settled = False

    def replace(self, requests: Iterable[Request]) -> None:
        self._requests = deque(requests)
        self._is_settled = False

    def settle(self) -> None:
        """Ranks change only where the order asks for it; those of newcomers in front go down."""
        if self._is_settled:
            return
        self._is_settled = True
        name, requests = self.name, self._requests
        stayed = next((i for i, request in enumerate(requests) if request.queue is name), None)
        num_new = stayed or 0
        rank = -1 if stayed is None else requests[stayed].queue_rank - num_new - 1
        for request in islice(requests, num_new):
            rank += 1
            self._place(request, rank)
        for request in islice(requests, num_new, None):
            if request.queue is name and request.queue_rank > rank:
                rank = request.queue_rank
            else:
                rank += 1
                self._place(request, rank)

    def _place(self, request: Request, rank: int) -> None:
        if request.queue is self.name and request.queue_rank == rank:
            return
        request.queue, request.queue_rank = self.name, rank
        self._journal.requests[request.request_id] = request
