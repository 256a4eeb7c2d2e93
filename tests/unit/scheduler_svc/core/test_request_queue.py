"""Queues are stored by rank: their order has to be that of the ranks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scheduler_svc.core.journal import Journal
from scheduler_svc.core.request import QueueName, Request
from scheduler_svc.core.request_queue import FCFSRequestQueue, make_request_queue
from tests.factories import make_config, make_request


@given(st.lists(st.sampled_from(["add", "prepend", "pop", "remove"]), max_size=40))
def test_fcfs_order_is_the_order_of_ranks(moves: list[str]) -> None:
    queue = FCFSRequestQueue(QueueName.WAITING, Journal())
    expected: list[Request] = []
    for number, move in enumerate(moves):
        if move == "add":
            queue.add(make_request(f"r{number}"))
            expected.append(list(queue)[-1])
        elif move == "prepend":
            queue.prepend(make_request(f"r{number}"))
            expected.insert(0, queue.peek())
        elif expected and move == "pop":
            assert queue.pop() is expected.pop(0)
        elif expected:
            queue.remove(expected.pop(len(expected) // 2))
        assert list(queue) == expected
        assert sorted(expected, key=lambda request: request.queue_rank) == expected


def test_priority_order_is_priority_then_arrival_then_id() -> None:
    queue = make_request_queue(make_config(policy="priority"), QueueName.WAITING, Journal())
    requests = [
        make_request("d", priority=1, arrival_unix_ms=0),
        make_request("c", priority=0, arrival_unix_ms=9),
        make_request("b", priority=0, arrival_unix_ms=3),
        make_request("a", priority=0, arrival_unix_ms=3),
    ]
    for request in requests:
        queue.prepend(request)
    assert [request.request_id for request in queue] == ["a", "b", "c", "d"]
    queue.remove(requests[2])
    assert [queue.pop().request_id for _ in range(len(queue))] == ["a", "c", "d"]


def test_every_move_is_noted() -> None:
    """What is not noted is not stored."""
    journal = Journal()
    queue = make_request_queue(make_config(), QueueName.WAITING, journal)
    request = make_request()
    for move in (queue.add, queue.remove, queue.prepend):
        journal.requests.clear()
        move(request)
        assert journal.requests == {"r0": request}
    journal.requests.clear()
    queue.pop()
    assert journal.requests == {"r0": request}
    assert request.queue is None
