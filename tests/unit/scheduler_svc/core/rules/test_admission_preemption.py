"""Preemption at admission: whom it helps, at whose cost, and that it never goes in circles."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_svc.core.events import PauseState
from scheduler_svc.core.rules.admission_preemption import AdmissionPreemption
from tests.factories import LaneDriver, make_config, make_request

MAX_STEPS = 400


def make_lane(**fields: Any) -> LaneDriver:
    defaults = {"policy": "priority", "preempt_for_admission": True}
    return LaneDriver(make_config(**(defaults | fields)))


def rule_of(lane: LaneDriver) -> AdmissionPreemption:
    (begin_step,) = lane.scheduler.features.rules.begin_step
    rule = begin_step.__self__  # pyright: ignore[reportFunctionMemberAccess]
    assert isinstance(rule, AdmissionPreemption)
    return rule


def test_who_outranks_takes_a_seat_in_the_same_step() -> None:
    lane = make_lane(max_num_seqs=2)
    lane.add(make_request("low", priority=2), make_request("mid", priority=1))
    lane.step()
    lane.add(make_request("high", priority=0))
    plan = lane.step()
    assert plan.preempted_req_ids == ["low"]
    assert list(plan.num_scheduled_tokens) == ["mid", "high"]


@pytest.mark.parametrize("is_on", [True, False])
def test_without_the_flag_it_waits(is_on: bool) -> None:
    lane = make_lane(max_num_seqs=1, preempt_for_admission=is_on)
    lane.add(make_request("low", priority=1))
    lane.step()
    lane.add(make_request("high"))
    assert list(lane.step().num_scheduled_tokens) == (["high"] if is_on else ["low"])


def test_equals_do_not_displace_each_other() -> None:
    lane = make_lane(max_num_seqs=1)
    lane.add(make_request("a", arrival_unix_ms=5))
    lane.step()
    lane.add(make_request("b", arrival_unix_ms=0))
    assert list(lane.step().num_scheduled_tokens) == ["a"]


def test_nobody_is_displaced_where_there_is_room() -> None:
    lane = make_lane(max_num_seqs=2)
    lane.add(make_request("low", priority=1))
    lane.step()
    lane.add(make_request("high"))
    assert list(lane.step().num_scheduled_tokens) == ["low", "high"]


def test_one_in_a_step_until_the_blocks_suffice() -> None:
    lane = make_lane(num_gpu_blocks=9)  # eight usable: two with three each, two left
    for name in ("b", "c"):
        lane.add(make_request(name, [ord(name) + i for i in range(10)], priority=1))
    lane.step()
    lane.add(make_request("high", range(200, 230)))
    first, second = lane.step(), lane.step()
    assert (first.preempted_req_ids, list(first.num_scheduled_tokens)) == (["b"], ["c"])
    assert (second.preempted_req_ids, list(second.num_scheduled_tokens)) == (["c"], ["high"])


def test_nobody_is_displaced_in_vain() -> None:
    """The one that it outranks holds too little: what it lacks, an equal one has."""
    lane = make_lane(num_gpu_blocks=9)
    lane.add(make_request("equal", range(20)), make_request("low", range(90, 95), priority=1))
    lane.step()
    lane.add(make_request("high", range(200, 220), arrival_unix_ms=1))
    plan = lane.step()
    assert plan.preempted_req_ids == []
    assert list(plan.num_scheduled_tokens) == ["equal", "low"]


def test_a_block_that_it_shares_with_the_victim_is_not_counted_as_freed() -> None:
    """Freed, it would be taken again at once."""
    lane = make_lane(num_gpu_blocks=9)
    lane.add(make_request("low", range(16), priority=1), make_request("equal", range(50, 58)))
    lane.step()  # low: 4 blocks and one more soon, equal: 2 and one more
    lane.step()
    lane.add(make_request("high", [*range(16), *range(80, 96)], arrival_unix_ms=1))
    assert lane.step().preempted_req_ids == []


def test_a_block_that_others_share_with_the_victim_is_not_freed() -> None:
    lane = make_lane(num_gpu_blocks=9)
    lane.add(make_request("equal", range(18)), make_request("low", range(18), priority=1))
    lane.step()  # five blocks, and one more
    lane.add(make_request("high", range(200, 216), arrival_unix_ms=1))
    assert lane.step().preempted_req_ids == []


def test_a_victim_does_not_come_back_in_the_same_step() -> None:
    """There would be budget and a block for three tokens of it."""
    lane = make_lane(
        num_gpu_blocks=9,
        max_num_batched_tokens=12,
        scheduler_reserve_full_isl=False,
        enable_prefix_caching=False,
    )
    lane.add(make_request("low", range(28), priority=1))
    lane.step()
    lane.step()
    lane.add(make_request("high", range(200, 209)))
    plan = lane.step()
    assert plan.preempted_req_ids == ["low"]
    assert plan.num_scheduled_tokens == {"high": 9}


def test_who_waits_for_its_own_output_displaces_nobody() -> None:
    """It would be passed over, and its victim come back."""
    lane = make_lane(max_num_seqs=1, async_scheduling=True)
    lane.add(make_request("high"))
    lane.plan()
    lane.scheduler.preempt_all()
    lane.add(make_request("low", priority=1))
    assert list(lane.plan().num_scheduled_tokens) == ["low"]
    assert list(lane.plan().num_scheduled_tokens) == ["low"]
    lane.answer()
    assert list(lane.plan().num_scheduled_tokens) == ["high"]


@pytest.mark.parametrize("state", [PauseState.PAUSED_NEW, PauseState.PAUSED_ALL])
def test_a_paused_lane_displaces_nobody(state: PauseState) -> None:
    lane = make_lane(max_num_seqs=1)
    lane.add(make_request("low", priority=1))
    lane.step()
    lane.add(make_request("high"))
    lane.scheduler.set_pause_state(state)
    assert lane.step().preempted_req_ids == []


def test_a_request_that_waits_for_an_adapter_displaces_nobody() -> None:
    lane = make_lane(max_num_seqs=2, max_loras=1)
    lane.add(make_request("low", priority=1), make_request("x", adapter="x"))
    lane.step()
    lane.add(make_request("y", adapter="y"))
    assert lane.step().preempted_req_ids == []
    lane.add(make_request("x2", adapter="x", arrival_unix_ms=1))
    assert lane.step().preempted_req_ids == ["low"]


def test_it_is_for_priority_only() -> None:
    with pytest.raises(ValueError, match="priority"):
        make_config(preempt_for_admission=True)


REQUESTS = st.lists(
    st.tuples(
        st.integers(0, 12),  # arrives before this step
        st.integers(0, 3),  # priority
        st.integers(1, 20),  # prompt
        st.integers(1, 12),  # max_tokens
    ),
    min_size=2,
    max_size=10,
)
CONFIGS = st.fixed_dictionaries(
    {
        "max_num_seqs": st.integers(1, 4),
        "num_gpu_blocks": st.integers(9, 14),
        "max_num_batched_tokens": st.sampled_from([6, 16, 64]),
        "scheduler_reserve_full_isl": st.booleans(),
        "priority_aging_ms": st.sampled_from([0, 0, 4]),
        "async_scheduling": st.booleans(),
        "watermark": st.sampled_from([0.0, 0.1]),
    }
)


@settings(max_examples=50)
@given(REQUESTS, CONFIGS)
def test_it_never_cycles(requests: list[tuple[int, int, int, int]], fields: dict[str, Any]) -> None:
    """At most one victim in a step, not scheduled in it; displacing is bounded; all end."""
    lane = make_lane(max_model_len=32, **fields)
    rule, depth = rule_of(lane), 2 if fields["async_scheduling"] else 1
    arriving = sorted(enumerate(requests), key=lambda item: item[1][0])
    below: dict[str, set[str]] = {}  # whom a request has displaced, directly or not
    times: Counter[tuple[str, str]] = Counter()
    for step in range(MAX_STEPS):
        while arriving and arriving[0][1][0] <= step:
            number, (arrival, priority, length, max_tokens) = arriving.pop(0)
            prompt = [number * 3 + i for i in range(length)]  # some share blocks, most do not
            fields = {"priority": priority, "arrival_unix_ms": arrival, "max_tokens": max_tokens}
            lane.add(make_request(f"r{number}", prompt, **fields))
        plan = lane.plan()
        if rule.victim is not None:
            assert rule.displacer is not None
            above, victim = rule.displacer.request_id, rule.victim.request_id
            assert victim in plan.preempted_req_ids
            assert victim not in plan.num_scheduled_tokens
            assert above not in below.get(victim, set())
            for downs in below.values():
                if above in downs:
                    downs |= {victim} | below.get(victim, set())
            below.setdefault(above, set()).update({victim}, below.get(victim, set()))
            times[above, victim] += 1
            assert times[above, victim] <= 1 + rule.displacer.num_preemptions
        while len(lane.planned) >= depth:
            lane.answer()
        if not arriving and not lane.scheduler.has_work() and not lane.planned:
            break
    assert all(request.is_finished for request in lane.requests.values())
