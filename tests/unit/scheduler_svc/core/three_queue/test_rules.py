"""The small objects of a V0 step: padding, delay, budget, ranks, configuration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler_svc.config import SchedulerServiceConfig
from scheduler_svc.core.journal import Journal
from scheduler_svc.core.request import QueueName
from scheduler_svc.core.scheduler_config import SchedulerConfig
from scheduler_svc.core.three_queue.budget import SchedulingBudget
from scheduler_svc.core.three_queue.config import ThreeQueueConfig
from scheduler_svc.core.three_queue.padding_limit import PaddingLimit
from scheduler_svc.core.three_queue.prompt_delay import PromptDelay
from scheduler_svc.core.three_queue.ranked_queue import RankedQueue
from scheduler_svc.policies import load_policy
from segue.types import Capacity, FinishReason
from tests.factories import make_request
from tests.three_queue_lane import ThreeQueueLane, make_v0_config


def test_a_batch_is_closed_when_its_rectangle_would_be_too_empty() -> None:
    limit = PaddingLimit(6)
    assert limit.has_room(10)
    limit.add(10)
    assert limit.has_room(4)  # 2 x 10 - 14 = 6
    assert not limit.has_room(3)
    limit.add(4)
    assert not limit.has_room(9)
    assert limit.has_room(10)
    assert PaddingLimit(None).has_room(1)


def test_max_paddings_splits_a_batch_of_prompts() -> None:
    for max_paddings, expected in ((None, ["a", "b"]), (6, ["a"])):
        lane = ThreeQueueLane(make_v0_config(max_paddings=max_paddings))
        lane.add("a", [5] * 12)
        lane.add("b", [6] * 4)
        assert list(lane.step().num_scheduled_tokens) == expected


def test_prompts_are_held_back_for_a_share_of_the_last_prompt_steps_time() -> None:
    delay = PromptDelay(2.0)
    first = make_request("r0", arrival_unix_ms=0)
    assert delay.has_passed(0, [first], runs_nothing=True)
    delay.note_prompts()
    second = make_request("r1", arrival_unix_ms=100)
    assert not delay.has_passed(100, [second], runs_nothing=False)  # the step took 100
    other = PromptDelay(2.0)
    other.restore(delay.state())
    assert not other.has_passed(300, [second], runs_nothing=False)
    assert other.has_passed(301, [second], runs_nothing=False)
    assert other.has_passed(150, [second], runs_nothing=True)


def test_a_request_counts_once_in_a_budget() -> None:
    budget = SchedulingBudget(10, 2)
    for _ in range(2):
        budget.add_seq("a")
        budget.add_tokens("a", 4, num_cached=3)
    assert (budget.num_tokens_left, budget.num_seqs, budget.num_cached_tokens) == (6, 1, 3)
    assert budget.can_schedule(6)
    assert not budget.can_schedule(7)
    budget.add_seq("b")
    assert not budget.can_schedule(1)
    budget.remove("a")
    assert budget.can_schedule(10)


def test_ranks_change_only_where_the_order_asks_for_it() -> None:
    journal = Journal()
    queue = RankedQueue(QueueName.RUNNING, journal)
    requests = [make_request(f"r{i}") for i in range(5)]
    for request in requests[:3]:
        queue.add(request)
    journal.requests.clear()
    first = queue.pop_first()
    queue.put_first([first])
    queue.put_first(requests[3:4])
    queue.put_last(requests[4:])
    queue.settle()
    assert [request.request_id for request in queue] == ["r3", "r0", "r1", "r2", "r4"]
    assert [request.queue_rank for request in queue] == [-1, 0, 1, 2, 3]
    assert list(journal.requests) == ["r3", "r4"]
    queue.replace(reversed(list(queue)))
    queue.settle()
    assert [request.queue_rank for request in queue] == [3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    "fields",
    [
        {"preemption_mode": "later"},
        {"delay_factor": -1.0},
        {"num_lookahead_slots": -1},
        {"enable_prefix_caching": True, "enable_chunked_prefill": True, "block_size": 128},
    ],
)
def test_what_contradicts_itself_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        make_v0_config(**fields)


def test_a_common_configuration_gets_v0s_own_defaults() -> None:
    config = ThreeQueueConfig.of(SchedulerConfig(max_num_seqs=7))
    assert (config.max_num_seqs, config.watermark, config.preemption_mode) == (7, 0.01, None)
    assert ThreeQueueConfig.of(SchedulerConfig(watermark=0.2)).watermark == 0.2
    swapping = make_v0_config(preemption_mode="swap", num_lookahead_slots=3)
    fitted = swapping.for_capacity(Capacity(9, 4, num_cpu_blocks=5))
    assert isinstance(fitted, ThreeQueueConfig)
    assert (fitted.num_gpu_blocks, fitted.num_cpu_blocks, fitted.max_model_len) == (9, 5, 32)
    assert (fitted.preemption_mode, fitted.num_lookahead_slots) == ("swap", 3)


def test_the_services_flags_reach_the_policy() -> None:
    service = SchedulerServiceConfig(
        policy="three_queue", preemption_mode="swap", delay_factor=0.5, max_paddings=64
    )
    config = service.engine_config().scheduler
    assert isinstance(config, ThreeQueueConfig)
    assert config.swaps
    assert (config.delay_factor, config.max_paddings) == (0.5, 64)
    assert config.watermark == 0.01
    assert service.digest() != replace(service, watermark=0.5).digest()


def test_the_services_flags_reach_a_policy_derived_from_it() -> None:
    service = SchedulerServiceConfig(policy="mymodule:Mine", preemption_mode="swap")
    config = service.engine_config().scheduler
    assert isinstance(config, ThreeQueueConfig)
    assert config.swaps


@pytest.mark.parametrize(
    "fields", [{"preemption_mode": "swap"}, {"delay_factor": 1.0}, {"max_paddings": 0}]
)
def test_the_unified_policy_does_not_take_what_it_does_not_do(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="three_queue"):
        SchedulerServiceConfig(**fields)


def test_the_policy_is_built_in_and_runs_one_step_at_a_time() -> None:
    make_policy = load_policy("three_queue")
    policy = make_policy("e0", SchedulerConfig(async_scheduling=True), {}, Journal())
    assert policy.max_steps_in_flight == 1


def test_a_prompt_that_can_never_be_served_ends_with_an_explanation() -> None:
    lane = ThreeQueueLane(make_v0_config(num_gpu_blocks=4))
    request = lane.add("a", [5] * 40)
    other = lane.add("b", [6] * 4)
    plan = lane.step()
    assert lane.scheduler.take_ignored() == ["a"]
    assert not lane.scheduler.take_ignored()
    assert request.finish is not None
    assert request.finish.reason is FinishReason.LENGTH
    assert "40 tokens are more than can be held" in request.finish.message
    assert list(plan.num_scheduled_tokens) == [other.request_id]


def test_a_replaced_block_is_told_to_the_executor_as_a_table_of_its_own() -> None:
    """Two equal requests fill equal blocks; the second one goes on with the first one's."""
    lane = ThreeQueueLane(make_v0_config(enable_prefix_caching=True))
    a = lane.add("a", [5, 6, 7], max_tokens=8)
    b = lane.add("b", [5, 6, 7], max_tokens=8)
    lane.step()
    assert a.block_ids != b.block_ids
    plan = lane.step()
    assert [row.request_id for row in plan.scheduled_resumed_reqs] == ["b"]
    assert a.block_ids[0] == b.block_ids[0]
    lane.step()
