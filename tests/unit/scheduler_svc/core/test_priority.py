"""Ageing: its bound on who may pass whom, and that a steady stream starves nobody."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_svc.core.priority import priority_order
from tests.factories import LaneDriver, make_config, make_request

AGING_MS = 5
ENDLESS = 200


@given(st.lists(st.tuples(st.integers(-3, 9), st.integers(0, 100)), min_size=2, max_size=12))
def test_nobody_is_behind_one_that_came_after_the_bound(ages: list[tuple[int, int]]) -> None:
    order = priority_order(make_config(policy="priority", priority_aging_ms=AGING_MS))
    requests = [
        make_request(f"r{number}", priority=priority, arrival_unix_ms=arrival)
        for number, (priority, arrival) in enumerate(ages)
    ]
    for first, second in product(requests, requests):
        num_levels = first.submission.priority - second.submission.priority
        bound = first.submission.arrival_unix_ms + num_levels * AGING_MS
        if second.submission.arrival_unix_ms > bound:
            assert order(first) < order(second)


def run_a_stream(*, aging_ms: int, preempts: bool, num_gpu_blocks: int) -> int | None:
    """When the least important of all ends, while an important one comes in every step."""
    config = make_config(
        policy="priority",
        priority_aging_ms=aging_ms,
        preempt_for_admission=preempts,
        max_num_seqs=2,
        num_gpu_blocks=num_gpu_blocks,
    )
    lane = LaneDriver(config)
    lane.add(make_request("least", range(20), priority=9, max_tokens=12))
    for step in range(ENDLESS):
        lane.add(make_request(f"r{step}", [step, 7], max_tokens=2, arrival_unix_ms=step))
        lane.step()
        if lane.requests["least"].is_finished:
            return step
    return None


@pytest.mark.parametrize("preempts", [False, True])
@pytest.mark.parametrize("num_gpu_blocks", [18, 33])
def test_a_steady_stream_does_not_starve_the_least_important(
    preempts: bool, num_gpu_blocks: int
) -> None:
    """Passed by those of 9 levels x 5 ms, so by 45; then it runs as soon as a seat is free.

    A millisecond is a step here. Those 45 take two steps each, two at a time.
    """
    ended = run_a_stream(aging_ms=AGING_MS, preempts=preempts, num_gpu_blocks=num_gpu_blocks)
    assert ended is not None
    assert ended <= 9 * AGING_MS + 2 * 2 + 12


def test_without_ageing_it_starves() -> None:
    assert run_a_stream(aging_ms=0, preempts=True, num_gpu_blocks=33) is None


def test_victims_are_chosen_by_age_too() -> None:
    """The old one is less important by number, and keeps its blocks: else ageing were in vain."""
    config = make_config(
        policy="priority", priority_aging_ms=AGING_MS, num_gpu_blocks=9, max_model_len=32
    )
    lane = LaneDriver(config)
    old = make_request("old", range(14), priority=1)
    lane.add(old, make_request("young", range(50, 64), priority=0, arrival_unix_ms=6))
    plan = lane.step()
    while not plan.preempted_req_ids:
        plan = lane.step()
    assert plan.preempted_req_ids == ["young"]
    assert old.num_preemptions == 0


def test_it_is_for_priority_only() -> None:
    with pytest.raises(ValueError, match="ageing"):
        make_config(priority_aging_ms=1)
