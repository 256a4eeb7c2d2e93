"""PROTOCOL.md H20: a victim that is undone must not leave hashes of KV that is never computed."""

from __future__ import annotations

import pytest

from tests.factories import LaneDriver, make_config, make_request


def lane_with_an_undone_victim(*, is_strict: bool) -> LaneDriver:
    """The long request, less important, is given a chunk that fills a block; then it is undone.

    It stands before the other one in `running`, since it came first. The chunk begins one more
    block, so that it is this one that is taken from it.
    """
    config = make_config(
        policy="priority",
        num_gpu_blocks=11,
        max_num_batched_tokens=12,
        long_prefill_token_threshold=6,
        strict=is_strict,
    )
    lane = LaneDriver(config)
    lane.add(make_request("long", list(range(33)), priority=2))
    lane.step()
    lane.add(make_request("short", list(range(50, 58)), priority=0, arrival_unix_ms=1))
    lane.step()
    lane.step()
    assert lane.requests["long"].num_computed_tokens == 24
    plan = lane.step()
    assert plan.preempted_req_ids == ["long"]
    assert list(plan.num_scheduled_tokens) == ["short"]
    return lane


@pytest.mark.parametrize(("is_strict", "num_hits"), [(True, 7), (False, 6)])
def test_only_strict_keeps_the_hash_of_what_was_not_computed(
    is_strict: bool, num_hits: int
) -> None:
    """Six blocks were computed in the steps before; the seventh never was."""
    lane = lane_with_an_undone_victim(is_strict=is_strict)
    long = lane.requests["long"]
    assert len(lane.scheduler.lane.kv.get_computed_blocks(long)) == num_hits
