"""What the engine does to a lane when something died: nothing waits for an answer that is lost."""

from __future__ import annotations

from scheduler_svc.core.request import Request
from segue.types import Finish
from tests.factories import LaneDriver, make_config, make_request


def overlapped(**fields: object) -> LaneDriver:
    return LaneDriver(make_config(async_scheduling=True, **fields))


def end_generation(lane: LaneDriver) -> None:
    while lane.planned:
        lane.scheduler.cancel_step(lane.planned.pop(0))
    lane.scheduler.end_generation()


def test_after_a_generation_all_is_as_new_and_in_order() -> None:
    lane = overlapped()
    requests = [make_request(name, list(range(9))) for name in "abc"]
    lane.add(*requests)
    lane.plan()
    lane.plan()
    end_generation(lane)
    scheduler = lane.scheduler
    assert scheduler.touched_block_ids() == []
    assert [request.request_id for request in scheduler.lane.waiting] == ["a", "b", "c"]
    assert not scheduler.lane.preempted_ids  # the executor's table is gone, so nobody is told
    for request in requests:
        assert request.num_in_flight_tokens == 0
        assert request.num_stale_output_tokens == 0
        assert request.num_output_placeholders == 0
    assert lane.plan().output_indices == {"a": 0, "b": 0, "c": 0}


def test_stale_output_of_a_cancelled_step_holds_nobody_back() -> None:
    """H8: preempted with output in flight, and the step never answers."""
    lane = overlapped()
    lane.add(make_request("a", list(range(9))))
    lane.plan()
    lane.scheduler.preempt_all()
    end_generation(lane)
    assert lane.plan().output_indices == {"a": 0}


def test_released_output_in_flight_is_dropped_and_waited_for() -> None:
    """H9: what is adopted must not be continued by a row that was planned before."""
    lane = overlapped()
    a = make_request("a", list(range(9)))
    lane.add(a)
    lane.plan()
    lane.scheduler.release_with_drop(a)
    a.set_output([50, 51], [])
    lane.scheduler.prepend_requests([a])
    plan = lane.plan()
    assert plan.preempted_req_ids == ["a"]
    assert plan.num_scheduled_tokens == {}
    assert lane.answer(a=[7]) == {}
    assert a.output_token_ids == [50, 51]
    lane.answer()
    assert lane.plan().output_indices == {"a": 2}


def test_a_waiting_request_can_be_released() -> None:
    lane = overlapped()
    a, b = make_request("a"), make_request("b")
    lane.add(a, b)
    lane.scheduler.release_with_drop(a)
    assert a.queue is None
    assert lane.scheduler.num_waiting() == 1


def test_a_moved_request_waits_for_its_output_from_the_old_lane() -> None:
    """H28: the row goes to the request, not through the queues of the lane that it comes from."""
    old = overlapped()
    new = LaneDriver(make_config(async_scheduling=True), lane_id="e1", requests=old.requests)
    a = make_request("a", list(range(9)))
    old.add(a)
    old.plan()
    old.scheduler.preempt_all()
    (moved,) = old.scheduler.take_all()
    moved.lane_id = "e1"
    new.scheduler.prepend_requests([moved])
    assert new.plan().num_scheduled_tokens == {}
    assert old.answer(a=[11]) == {"a": None}
    assert a.output_token_ids == [11]
    new.answer()
    assert new.plan().output_indices == {"a": 1}
    assert old.plan().preempted_req_ids == ["a"]


def test_output_that_ends_a_moved_request_is_handed_to_the_engine() -> None:
    old = overlapped()
    new = LaneDriver(make_config(async_scheduling=True), lane_id="e1", requests=old.requests)
    ended: list[str] = []

    def finish(request: Request, finish: Finish, now_ms: int) -> None:
        ended.append(request.request_id)
        new.scheduler.finish_request(request, finish, now_ms)

    old.scheduler.on_foreign_finish = finish
    a = make_request("a", list(range(9)), max_tokens=1)
    old.add(a)
    old.plan()
    old.scheduler.preempt_all()
    for request in old.scheduler.take_all():
        request.lane_id = "e1"
        new.scheduler.prepend_requests([request])
    assert old.answer()["a"] is not None
    assert ended == ["a"]
    assert a.is_finished
    assert new.scheduler.num_unfinished() == 0


def test_taken_requests_keep_their_order_at_the_head_of_another_lane() -> None:
    old = overlapped()
    new = LaneDriver(make_config(async_scheduling=True), lane_id="e1", requests=old.requests)
    old.add(*[make_request(name, list(range(9))) for name in "abc"])
    new.add(make_request("z"))
    old.plan()
    end_generation(old)
    moved = old.scheduler.take_all()
    for request in moved:
        request.lane_id = "e1"
    new.scheduler.prepend_requests(moved)
    assert list(new.plan().num_scheduled_tokens) == ["a", "b", "c", "z"]
