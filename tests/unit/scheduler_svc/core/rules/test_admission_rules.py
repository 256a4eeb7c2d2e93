"""Rules that hold a waiting request back: who may pass it, and when it goes on."""

from __future__ import annotations

from scheduler_svc.core.request import Request, RequestStatus
from scheduler_svc.core.rules.draft_padding import DraftPadding
from scheduler_svc.core.rules.long_prefill_cap import long_prefill_cap
from scheduler_svc.core.unified.step_draft import StepDraft
from segue.types import FinishReason
from tests.factories import LaneDriver, make_config, make_request, make_submission


def scheduled(lane: LaneDriver) -> list[str]:
    return list(lane.step().num_scheduled_tokens)


def test_a_third_adapter_waits_without_holding_up_others() -> None:
    lane = LaneDriver(make_config(max_loras=2))
    lane.add(*[make_request(name, adapter=name) for name in ("a", "b", "c")])
    lane.add(make_request("plain"), make_request("b2", adapter="b"))
    assert scheduled(lane) == ["a", "b", "plain", "b2"]
    assert lane.requests["c"].is_deferred
    assert [request.request_id for request in lane.scheduler.lane.waiting] == ["c"]


def test_a_grammar_that_compiles_later_does_not_block() -> None:
    lane = LaneDriver(make_config())
    waiting = Request(make_submission("g"), block_size=4, has_grammar=True)
    lane.add(waiting, make_request("a"))
    assert scheduled(lane) == ["a"]
    lane.scheduler.features.grammar_wait.report(waiting, is_ready=True)
    assert scheduled(lane) == ["a", "g"]


def test_a_grammar_that_fails_ends_its_request_once() -> None:
    lane = LaneDriver(make_config())
    waiting = Request(make_submission("g"), block_size=4, has_grammar=True)
    lane.add(waiting)
    lane.scheduler.features.grammar_wait.report(waiting, is_ready=False)
    lane.plan()
    finish = lane.answer()["g"]
    assert finish is not None
    assert finish.reason is FinishReason.ERROR
    assert waiting.status is RequestStatus.FINISHED_ERROR
    lane.plan()
    assert lane.answer() == {}


def test_a_throttled_step_goes_on_with_decodes_only() -> None:
    lane = LaneDriver(make_config(throttles_prefills=True))
    lane.add(make_request("a"))
    assert scheduled(lane) == ["a"]
    lane.add(make_request("b"))
    lane.scheduler.set_prefill_throttle(True)
    assert scheduled(lane) == ["a"]
    lane.scheduler.set_prefill_throttle(False)
    assert scheduled(lane) == ["a", "b"]


def test_a_throttle_is_lifted_where_nobody_decodes() -> None:
    lane = LaneDriver(make_config(throttles_prefills=True))
    lane.add(make_request("a"))
    lane.scheduler.set_prefill_throttle(True)
    assert scheduled(lane) == ["a"]


def test_staggered_decodes_come_every_second_step() -> None:
    config = make_config(async_scheduling=True, v2_model_runner=True, pipeline_parallel_size=2)
    lane = LaneDriver(config)
    lane.add(make_request("a"))
    assert [scheduled(lane) for _ in range(4)] == [["a"], [], ["a"], []]


def test_the_active_limit_is_below_the_slots() -> None:
    lane = LaneDriver(make_config(max_num_active_seqs=1))
    lane.add(make_request("a"), make_request("b"))
    assert scheduled(lane) == ["a"]


def test_a_lone_request_is_never_capped() -> None:
    config = make_config(long_prefill_token_threshold=4)
    assert long_prefill_cap(config, 1) == 0
    assert long_prefill_cap(config, 2) == 4


def test_an_adaptive_cap_is_at_least_a_fair_share() -> None:
    config = make_config(long_prefill_token_threshold=4, long_prefill_token_threshold_adaptive=True)
    assert long_prefill_cap(config, 8) == 8
    assert long_prefill_cap(config, 60) == 4


def test_one_token_admissions_are_padded_in_company_only() -> None:
    padding = DraftPadding(make_config(num_spec_tokens=3))
    alone, beside = StepDraft(1, 64, 64, 0), StepDraft(1, 64, 64, 0)
    beside.running.append(make_request())
    assert padding.num_drafts(1, 0, alone) == 0
    assert padding.num_drafts(1, 8, alone) == 3
    assert padding.num_drafts(1, 0, beside) == 3
    assert padding.num_drafts(2, 0, beside) == 0
    assert padding.num_drafts(1, 60, beside) == 0  # no room up to the model's length
    beside.has_prefill_chunk = True
    assert padding.num_drafts(1, 0, beside) == 0


def test_an_adapter_too_many_may_close_the_step_for_all_behind_it() -> None:
    lane = LaneDriver(make_config(max_loras=1, max_loras_stops_admission=True))
    lane.add(make_request("a", adapter="a"), make_request("b", adapter="b"), make_request("plain"))
    assert scheduled(lane) == ["a"]
    assert [request.request_id for request in lane.scheduler.lane.waiting] == ["b", "plain"]
