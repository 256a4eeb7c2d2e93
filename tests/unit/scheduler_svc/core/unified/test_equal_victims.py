"""docs/decisions/v1-repairs.md: requests of equal rank must not displace each other for ever."""

from __future__ import annotations

import pytest

from tests.factories import LaneDriver, make_config, make_request

MANY_STEPS = 200


@pytest.mark.parametrize("is_strict", [True, False])
def test_only_strict_lets_equals_displace_each_other_in_turn(*, is_strict: bool) -> None:
    """Three choices of one call: same priority, same arrival, and blocks for one and a half."""
    config = make_config(
        policy="priority",
        num_gpu_blocks=8,
        max_num_batched_tokens=8,
        long_prefill_token_threshold=3,
        scheduler_reserve_full_isl=False,
        enable_prefix_caching=False,
        strict=is_strict,
    )
    lane = LaneDriver(config)
    lane.add(*[make_request(name, list(range(16)), max_tokens=4) for name in "abc"])
    for _ in range(MANY_STEPS):
        lane.step()
    have_ended = {request.is_finished for request in lane.requests.values()}
    assert have_ended == {not is_strict}
