"""What V0 does wrongly: `strict` does it too, the default does not. One test for each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler_svc.core.request import Request, RequestStatus
from scheduler_svc.core.stop_check import make_finish
from scheduler_svc.core.three_queue.block_tables import EngineFailure
from segue.types import FinishReason
from tests.factories import make_submission
from tests.three_queue_lane import ThreeQueueLane, make_v0_config

SWAP: dict[str, Any] = {"num_gpu_blocks": 8, "num_cpu_blocks": 16, "preemption_mode": "swap"}


def lane_with(**fields: Any) -> ThreeQueueLane:
    """Small, of V0's rules, and nothing kept free unless the test says so."""
    return ThreeQueueLane(make_v0_config(**({"watermark": 0.0} | fields)))


def fill(lane: ThreeQueueLane, num_tokens: int = 12, **fields: Any) -> None:
    """Two requests that run, and that cannot both go on for long."""
    lane.add("a", [5] * num_tokens, max_tokens=30, **fields)
    lane.add("b", [6] * num_tokens, max_tokens=30, **fields)


def step_until_swapped(lane: ThreeQueueLane) -> None:
    for _ in range(20):
        plan = lane.step()
        if plan.swap_out:
            return
    raise AssertionError("nobody was swapped out")


def step_until_done(lane: ThreeQueueLane, num_steps: int = 200) -> bool:
    for _ in range(num_steps):
        if not lane.scheduler.num_unfinished():
            return True
        lane.step()
    return False


@pytest.mark.parametrize("is_strict", [True, False])
def test_a_swapped_request_does_not_wait_for_a_watermark_that_it_is_a_part_of(
    is_strict: bool,
) -> None:
    """8 blocks, 4 kept free: with 5 to copy and one to append to, b would never come back."""
    lane = lane_with(**SWAP, watermark=0.5, strict=is_strict)
    lane.add("a", [5] * 12, max_tokens=30)
    lane.step()
    b = lane.add("b", [6] * 4, max_tokens=30)
    step_until_swapped(lane)
    while b.status is not RequestStatus.SWAPPED and lane.scheduler.lane.running:
        lane.step()
    assert step_until_done(lane) is not is_strict


@pytest.mark.parametrize("is_strict", [True, False])
def test_a_swapped_request_that_is_given_up_gives_back_its_cpu_blocks(is_strict: bool) -> None:
    lane = lane_with(num_gpu_blocks=4, num_cpu_blocks=16, preemption_mode="swap", strict=is_strict)
    lane.add("a", [5] * 14, max_tokens=30)
    for _ in range(20):
        lane.plan()
        lane.answer()
        if lane.scheduler.take_ignored() == ["a"]:
            break
    finish = lane.requests["a"].finish
    assert finish is not None
    assert finish.reason is FinishReason.LENGTH
    assert "more than can be held" in finish.message
    assert lane.scheduler.lane.tables.cpu.num_free == (12 if is_strict else 16)
    if not is_strict:
        lane.check()


@pytest.mark.parametrize("num_cpu_blocks", [0, 2])
def test_who_cannot_be_swapped_out_is_recomputed(num_cpu_blocks: int) -> None:
    fields: dict[str, Any] = SWAP | {"num_cpu_blocks": num_cpu_blocks}
    lane = lane_with(**fields)
    fill(lane)
    assert step_until_done(lane)
    assert lane.scheduler.num_tokens_given_back() > 0
    strict = lane_with(**fields, strict=True)
    fill(strict)
    with pytest.raises(EngineFailure, match="no room on the CPU"):
        step_until_done(strict)


def test_who_is_forced_out_by_priority_is_recomputed_where_others_are_swapped() -> None:
    fields: dict[str, Any] = SWAP | {"policy": "priority"}
    lanes = [lane_with(**fields), lane_with(**fields, strict=True)]
    for lane in lanes:
        fill(lane, priority=1)
        lane.step()
        lane.add("urgent", [7] * 16, max_tokens=2, priority=0)
    lane, strict = lanes
    plan = lane.step()
    assert plan.preempted_req_ids == ["b"]
    assert not plan.swap_out
    assert lane.requests["b"].status is RequestStatus.PREEMPTED
    assert list(lane.step().num_scheduled_tokens) == ["urgent"]
    assert step_until_done(lane)
    with pytest.raises(EngineFailure, match="among those that wait"):
        strict.step()


def test_nobody_is_forced_out_while_swapped_requests_keep_prompts_out() -> None:
    lane = lane_with(**SWAP, policy="priority")
    fill(lane, priority=1)
    step_until_swapped(lane)
    lane.add("urgent", [7] * 16, max_tokens=2, priority=0)
    brings_back = lane.step()
    assert not brings_back.preempted_req_ids
    assert brings_back.swap_in
    assert lane.step().preempted_req_ids == ["b"]
    assert list(lane.step().num_scheduled_tokens) == ["urgent"]


def test_a_swapped_request_can_be_aborted_with_prefix_caching() -> None:
    fields: dict[str, Any] = SWAP | {"enable_prefix_caching": True}
    for is_strict in (False, True):
        lane = lane_with(**fields, strict=is_strict)
        fill(lane)
        step_until_swapped(lane)
        b = lane.requests["b"]
        assert b.status is RequestStatus.SWAPPED
        finish = make_finish(b, FinishReason.ABORT)
        if is_strict:
            with pytest.raises(EngineFailure, match="are not found"):
                lane.scheduler.finish_request(b, finish, 0)
            continue
        lane.scheduler.finish_request(b, finish, 0)
        lane.check()
        assert lane.scheduler.lane.tables.cpu.num_free == 16


@pytest.mark.parametrize("is_strict", [True, False])
def test_a_block_that_no_step_has_computed_yet_is_not_found(is_strict: bool) -> None:
    """V0 hashes the whole prompt when its first chunk is computed."""
    lane = lane_with(
        enable_prefix_caching=True,
        enable_chunked_prefill=True,
        max_num_batched_tokens=8,
        strict=is_strict,
    )
    a = lane.add("a", list(range(10, 30)))
    lane.step()
    assert a.num_computed_tokens == 8
    lane.scheduler.preempt_all()
    b = lane.add("b", list(range(10, 30)))
    assert lane.scheduler.num_cached_prefix_tokens(b) == (20 if is_strict else 8)


@pytest.mark.parametrize("is_strict", [True, False])
def test_what_was_cached_is_looked_up_again_while_a_request_waits(is_strict: bool) -> None:
    """V0 keeps the first answer, also when the blocks have been evicted since."""
    lane = lane_with(num_gpu_blocks=8, enable_prefix_caching=True, max_num_seqs=1, strict=is_strict)
    shared = list(range(10, 26))
    lane.add("a", shared, max_tokens=1)
    lane.step()
    lane.add("b", [5] * 30, max_tokens=1)
    waits = lane.add("c", [*shared, 9], max_tokens=1)
    lane.scheduler.lane.tables.num_cached_tokens(waits)  # V0 looks when it considers c
    lane.step()
    assert lane.scheduler.num_cached_prefix_tokens(waits) == 0
    plan = lane.step()
    while not waits.num_computed_tokens:
        plan = lane.step()
    assert plan.num_scheduled_tokens == {"c": 1 if is_strict else 17}


@pytest.mark.parametrize("is_strict", [True, False])
def test_the_rest_of_a_prompt_that_is_larger_than_a_step_comes_back_in_chunks(
    is_strict: bool,
) -> None:
    lane = lane_with(
        num_gpu_blocks=14,
        num_cpu_blocks=16,
        preemption_mode="swap",
        enable_chunked_prefill=True,
        max_num_batched_tokens=8,
        strict=is_strict,
    )
    lane.add("a", [5] * 6, max_tokens=20)
    lane.step()
    long = lane.add("long", [6] * 48, max_tokens=2)
    step_until_swapped(lane)
    assert long.status is RequestStatus.SWAPPED
    assert long.num_tokens - long.num_computed_tokens > 8
    assert step_until_done(lane) is not is_strict


@pytest.mark.parametrize("is_strict", [True, False])
def test_an_adapter_in_use_is_not_forgotten_when_its_request_lacks_room(is_strict: bool) -> None:
    """a has a row with adapter 1; b, with the same one, is preempted. c would be one too many."""
    lane = lane_with(
        num_gpu_blocks=9,
        enable_chunked_prefill=True,
        max_loras=1,
        strict=is_strict,
    )
    lane.add("a", [5] * 15, max_tokens=20, adapter="1")
    lane.add("b", [6] * 15, max_tokens=20, adapter="1")
    lane.step()
    lane.add("c", [7] * 4, max_tokens=20, adapter="2")
    while True:
        plan = lane.step()
        if plan.preempted_req_ids:
            break
    assert plan.preempted_req_ids == ["b"]
    assert ("c" in plan.num_scheduled_tokens) is is_strict


def test_a_step_that_only_gives_up_requests_is_followed_by_the_next_one_at_once() -> None:
    """Nothing might happen that makes the engine ask again; V0 asks for ever."""
    lane = lane_with(num_gpu_blocks=4, num_cpu_blocks=16, preemption_mode="swap")
    lane.add("a", [5] * 14, max_tokens=30)
    while not lane.scheduler.lane.swapped:
        lane.step()
    lane.add("next", [6] * 4, max_tokens=1)
    plan = lane.step()
    while not lane.scheduler.take_ignored():
        plan = lane.step()
    assert list(plan.num_scheduled_tokens) == ["next"]


@pytest.mark.parametrize("is_strict", [True, False])
def test_who_needs_a_part_of_the_watermark_is_not_given_up_half_way(is_strict: bool) -> None:
    """6 blocks, 2 kept free: a has grown to 5 blocks when it is preempted."""
    lane = lane_with(num_gpu_blocks=6, watermark=0.34, strict=is_strict)
    a = lane.add("a", [5] * 12, max_tokens=9)
    for _ in range(6):
        lane.step()
    assert len(a.block_ids) == 5
    lane.scheduler.preempt_all()
    assert step_until_done(lane)
    assert a.num_output_tokens == (6 if is_strict else 9)


@pytest.mark.parametrize("is_strict", [True, False])
def test_no_token_comes_behind_the_longest_that_is_served(is_strict: bool) -> None:
    lane = lane_with(max_model_len=8, strict=is_strict)
    a = lane.add("a", [5] * 5, max_tokens=30)
    assert step_until_done(lane)
    assert a.num_tokens == (9 if is_strict else 8)


@pytest.mark.parametrize("is_strict", [True, False])
def test_min_tokens_is_for_the_executor_to_keep(is_strict: bool) -> None:
    """V0 looks at nothing else before so many tokens, not even at the length."""
    lane = lane_with(max_model_len=8, strict=is_strict)
    submission = make_submission("a", [5] * 5, max_tokens=2)
    params = replace(submission.sampling_params, min_tokens=6)
    request = Request(replace(submission, sampling_params=params), block_size=4)
    request.lane_id = "e0"
    lane.requests["a"] = request
    lane.scheduler.add_request(request)
    assert step_until_done(lane)
    assert request.num_output_tokens == (6 if is_strict else 2)
