"""One lane, step by step, by hand: budgets, order, preemption, overlap, stops, pauses."""

from __future__ import annotations

from scheduler_svc.core.events import PauseState
from scheduler_svc.core.request import RequestStatus
from scheduler_svc.core.stop_check import make_finish
from segue.types import FinishReason
from tests.factories import EOS, LaneDriver, make_config, make_request


def test_running_requests_are_served_before_waiting_ones() -> None:
    lane = LaneDriver(make_config(max_num_batched_tokens=16, max_num_seqs=4))
    lane.add(make_request("a", list(range(10))), make_request("b", list(range(20, 40))))
    assert lane.step().num_scheduled_tokens == {"a": 10, "b": 6}
    assert lane.step().num_scheduled_tokens == {"a": 1, "b": 14}


def test_a_chunk_samples_nothing_and_the_last_one_does() -> None:
    lane = LaneDriver(make_config(max_num_batched_tokens=8))
    lane.add(make_request("a", list(range(12))))
    assert lane.step().output_indices == {}
    assert lane.step().output_indices == {"a": 0}
    assert lane.step().output_indices == {"a": 1}


def test_a_row_that_failed_is_no_fault_of_the_others() -> None:
    """The executor sends it without a token; this ended the scheduler, and its successor, once."""
    lane = LaneDriver(make_config())
    a, b = make_request("a"), make_request("b")
    lane.add(a, b)
    lane.step()
    lane.step(a=[])
    assert (a.num_output_tokens, b.num_output_tokens) == (1, 2)


def test_a_plan_tells_everything_once_and_then_what_changed() -> None:
    lane = LaneDriver(make_config())
    lane.add(make_request("a", list(range(7))))
    (whole,) = lane.step().scheduled_new_reqs
    assert whole.token_ids == tuple(range(7))
    assert whole.block_ids == (1, 2)
    plan = lane.step()
    assert plan.scheduled_new_reqs == []
    assert plan.scheduled_cached_reqs.request_ids == ["a"]
    assert plan.scheduled_cached_reqs.new_block_ids == [()]
    assert lane.step().scheduled_cached_reqs.new_block_ids == [(3,)]


def test_a_preempted_request_comes_back_whole_with_its_output() -> None:
    """After dropped output the executor's row has tokens that we do not have (H4)."""
    lane = LaneDriver(make_config(num_gpu_blocks=6, enable_prefix_caching=False))
    a, b = make_request("a", list(range(8)), max_tokens=9), make_request("b", list(range(20, 28)))
    lane.add(a, b)
    lane.step()
    plan = lane.step()
    assert plan.preempted_req_ids == ["b"]
    assert plan.num_scheduled_tokens == {"a": 1}
    assert b.status is RequestStatus.PREEMPTED
    assert b.block_ids == []
    while not a.is_finished:
        lane.step()
    (whole,) = lane.step().scheduled_resumed_reqs
    assert whole.request_id == "b"
    assert whole.num_prompt_tokens == 8
    assert whole.token_ids == (*range(20, 28), *[9] * (len(whole.token_ids) - 8))


def test_nobody_is_admitted_in_a_step_that_preempts() -> None:
    lane = LaneDriver(make_config(num_gpu_blocks=6, enable_prefix_caching=False))
    lane.add(make_request("a", list(range(8))), make_request("b", list(range(20, 28))))
    lane.step()
    lane.add(make_request("c", [1]))
    plan = lane.step()
    assert plan.preempted_req_ids == ["b"]
    assert list(plan.num_scheduled_tokens) == ["a"]


def test_overlapped_steps_have_indices_fixed_at_planning() -> None:
    lane = LaneDriver(make_config(async_scheduling=True))
    lane.add(make_request("a", list(range(7))))
    assert lane.plan().output_indices == {"a": 0}
    assert lane.plan().output_indices == {"a": 1}
    lane.answer()
    assert lane.plan().output_indices == {"a": 2}
    lane.answer(a=[11])
    assert lane.requests["a"].output_token_ids == [9, 11]


def test_overlap_plans_nothing_beyond_max_tokens() -> None:
    lane = LaneDriver(make_config(async_scheduling=True))
    lane.add(make_request("a", list(range(7)), max_tokens=2))
    lane.plan()
    lane.plan()
    lane.answer()
    assert lane.plan().num_scheduled_tokens == {}


def test_output_in_flight_of_a_preempted_request_is_delivered() -> None:
    lane = LaneDriver(make_config(async_scheduling=True))
    a = make_request("a", list(range(7)))
    lane.add(a)
    lane.plan()
    lane.scheduler.preempt_all()
    assert lane.plan().num_scheduled_tokens == {}  # it waits for its output
    assert lane.answer(a=[11]) == {"a": None}
    lane.answer()
    assert a.output_token_ids == [11]
    assert lane.plan().output_indices == {"a": 1}


def test_eos_on_the_last_allowed_token_is_a_stop() -> None:
    lane = LaneDriver(make_config(), next_token=EOS)
    lane.add(make_request("a", max_tokens=1))
    lane.plan()
    finish = lane.answer()["a"]
    assert finish is not None
    assert finish.reason is FinishReason.STOP
    assert finish.usage.num_output_tokens == 1


def test_a_stop_id_is_the_stop_reason() -> None:
    lane = LaneDriver(make_config(), next_token=33)
    lane.add(make_request("a", stop_token_ids=(33,)))
    lane.plan()
    finish = lane.answer()["a"]
    assert finish is not None
    assert finish.stop_reason == 33


def test_an_abort_while_a_step_runs_frees_at_once_and_voids_its_row() -> None:
    lane = LaneDriver(make_config(async_scheduling=True))
    a = make_request("a", list(range(7)))
    lane.add(a)
    lane.plan()
    lane.plan()
    lane.scheduler.finish_request(a, make_finish(a, FinishReason.ABORT), 0)
    assert lane.scheduler.num_free_blocks() == 32
    assert lane.answer() == {}
    assert lane.answer() == {}
    assert a.num_in_flight_tokens == 0
    assert lane.plan().finished_req_ids == ["a"]


def test_pause_new_lets_running_requests_go_on() -> None:
    lane = LaneDriver(make_config())
    lane.add(make_request("a"))
    lane.step()
    lane.add(make_request("b"))
    lane.scheduler.set_pause_state(PauseState.PAUSED_NEW)
    assert list(lane.step().num_scheduled_tokens) == ["a"]
    lane.scheduler.set_pause_state(PauseState.PAUSED_ALL)
    assert list(lane.step().num_scheduled_tokens) == []
    assert not lane.scheduler.has_work()
    lane.scheduler.set_pause_state(PauseState.UNPAUSED)
    assert list(lane.step().num_scheduled_tokens) == ["a", "b"]


def test_reset_with_running_requests_keeps_their_order_and_drops_their_output() -> None:
    lane = LaneDriver(make_config(async_scheduling=True))
    a, b = make_request("a", list(range(8))), make_request("b", list(range(8)))
    lane.add(a, b)
    lane.plan()
    assert not lane.scheduler.reset_prefix_cache(reset_running=False)
    assert lane.scheduler.reset_prefix_cache(reset_running=True)
    plan = lane.plan()
    assert plan.preempted_req_ids == ["b", "a"]
    assert [row.request_id for row in plan.scheduled_resumed_reqs] == ["a", "b"]
    assert plan.output_indices == {"a": 0, "b": 0}
    assert lane.answer() == {}
    assert lane.answer() == {"a": None, "b": None}
    assert a.output_token_ids == [9]
