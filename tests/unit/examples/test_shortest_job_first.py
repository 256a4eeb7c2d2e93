"""The example of docs/policies.md does what it says, and is found by the name that it gives."""

from __future__ import annotations

from examples.shortest_job_first import ShortestJobFirst
from scheduler_svc.policies import load_policy
from tests.factories import LaneDriver, make_config, make_request


def shortest_job_first(**fields: int) -> LaneDriver:
    lane = LaneDriver(make_config(**fields))
    lane.scheduler = ShortestJobFirst("e0", lane.scheduler.config, lane.requests, lane.journal)
    return lane


def test_the_shortest_is_admitted_first() -> None:
    lane = shortest_job_first(max_num_seqs=1)
    lane.add(
        make_request("long", range(10, 20), max_tokens=9),
        make_request("short", max_tokens=2),
        make_request("wordy", max_tokens=8),
        make_request("equal", max_tokens=2, arrival_unix_ms=1),
    )
    ended: list[str] = []
    while lane.scheduler.has_work():
        lane.plan()
        ended += [name for name, finish in lane.answer().items() if finish is not None]
    assert ended == ["short", "equal", "wordy", "long"]


def test_a_preempted_request_waits_by_its_length() -> None:
    lane = shortest_job_first(max_num_seqs=1)
    lane.add(make_request("long", max_tokens=9))
    lane.step()
    lane.add(make_request("short", max_tokens=2))
    lane.scheduler.preempt_all()
    assert list(lane.step().num_scheduled_tokens) == ["short"]


def test_it_is_found_by_module_and_class() -> None:
    assert load_policy("examples.shortest_job_first:ShortestJobFirst") is ShortestJobFirst
