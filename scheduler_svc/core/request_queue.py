"""Waiting requests in the order in which they are to be admitted.

Knows nothing about admission. Invariant: a request in a queue has `queue` set to the queue's name,
and its rank orders it among those of the same queue.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator

from scheduler_svc.core.journal import Journal
from scheduler_svc.core.priority import SortKey, priority_order
from scheduler_svc.core.request import QueueName, Request
from scheduler_svc.core.scheduler_config import SchedulerConfig


class RequestQueue(ABC):
    """`add` and `prepend` note the request in the journal; so does every removal."""

    def __init__(self, name: QueueName, journal: Journal) -> None:
        self._name = name
        self._journal = journal

    @abstractmethod
    def add(self, request: Request) -> None: ...
    @abstractmethod
    def prepend(self, request: Request) -> None: ...
    @abstractmethod
    def peek(self) -> Request: ...
    @abstractmethod
    def pop(self) -> Request: ...
    @abstractmethod
    def remove(self, request: Request) -> None: ...
    @abstractmethod
    def __len__(self) -> int: ...
    @abstractmethod
    def __iter__(self) -> Iterator[Request]:
        """In the order of `pop`."""

    @abstractmethod
    def restore(self, request: Request) -> None:
        """Append a request whose `queue_rank` is known."""

    def _enter(self, request: Request, rank: int) -> None:
        request.queue, request.queue_rank = self._name, rank
        self._journal.requests[request.request_id] = request

    def _leave(self, request: Request) -> None:
        request.queue = None
        self._journal.requests[request.request_id] = request


class FCFSRequestQueue(RequestQueue):
    """First come, first served; what comes back goes to the front."""

    def __init__(self, name: QueueName, journal: Journal) -> None:
        super().__init__(name, journal)
        self._requests: deque[Request] = deque()

    def add(self, request: Request) -> None:
        rank = self._requests[-1].queue_rank + 1 if self._requests else 0
        self._enter(request, rank)
        self._requests.append(request)

    def prepend(self, request: Request) -> None:
        rank = self._requests[0].queue_rank - 1 if self._requests else 0
        self._enter(request, rank)
        self._requests.appendleft(request)

    def peek(self) -> Request:
        return self._requests[0]

    def pop(self) -> Request:
        request = self._requests.popleft()
        self._leave(request)
        return request

    def remove(self, request: Request) -> None:
        self._requests.remove(request)
        self._leave(request)

    def restore(self, request: Request) -> None:
        self._requests.append(request)

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)


class SortedRequestQueue(RequestQueue):
    """By a key that each request has for good; "front" has no meaning here."""

    def __init__(self, name: QueueName, journal: Journal, key: SortKey) -> None:
        super().__init__(name, journal)
        self._key = key
        self._requests: list[Request] = []

    def add(self, request: Request) -> None:
        self._enter(request, self._key(request)[0])
        insort(self._requests, request, key=self._key)

    def prepend(self, request: Request) -> None:
        self.add(request)

    def peek(self) -> Request:
        return self._requests[0]

    def pop(self) -> Request:
        request = self._requests.pop(0)
        self._leave(request)
        return request

    def remove(self, request: Request) -> None:
        index = bisect_left(self._requests, self._key(request), key=self._key)
        assert self._requests[index] is request
        del self._requests[index]
        self._leave(request)

    def restore(self, request: Request) -> None:
        insort(self._requests, request, key=self._key)

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)


def make_request_queue(config: SchedulerConfig, name: QueueName, journal: Journal) -> RequestQueue:
    """The queue that `config.policy` asks for."""
    if config.policy == "priority":
        return SortedRequestQueue(name, journal, priority_order(config))
    return FCFSRequestQueue(name, journal)
