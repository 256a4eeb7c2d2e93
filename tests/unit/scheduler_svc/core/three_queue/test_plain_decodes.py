"""Plain decodes are served in a loop of their own, which must decide what the general path does.

A limit of adapters that nobody uses switches that loop off, and changes nothing else.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from scheduler_svc.core.journal import Journal
from scheduler_svc.core.three_queue.block_tables import BlockTables
from scheduler_svc.core.three_queue.budget import SchedulingBudget
from scheduler_svc.core.three_queue.token_count import TokenCount
from segue.types import SchedulerOutput
from tests.factories import make_request
from tests.three_queue_lane import ThreeQueueLane, make_v0_config

NUM_STEPS = 80


def plans(seed: int, **fields: Any) -> list[SchedulerOutput]:
    """Of a lane with few blocks, seats and tokens, where requests keep coming."""
    rng = random.Random(seed)
    config = make_v0_config(
        num_gpu_blocks=rng.choice((12, 24, 48)),
        max_num_seqs=rng.choice((3, 8)),
        enable_prefix_caching=rng.random() < 0.7,
        preemption_mode=rng.choice(("recompute", "swap")),
        num_cpu_blocks=24,
        **fields,
    )
    lane = ThreeQueueLane(config)
    planned: list[SchedulerOutput] = []
    for number in range(NUM_STEPS):
        if rng.random() < 0.6:
            prompt = [3 + rng.randrange(4)] * rng.randrange(1, 12)
            lane.add(f"r{number}", prompt, max_tokens=rng.randrange(1, 24))
        planned.append(lane.step())
    return planned


@pytest.mark.parametrize("chunked", [{}, {"enable_chunked_prefill": True}])
@pytest.mark.parametrize("seed", range(12))
def test_the_loop_of_plain_decodes_decides_what_the_general_path_does(
    seed: int, chunked: dict[str, Any]
) -> None:
    budget = {"max_num_batched_tokens": 8} if chunked else {}  # two blocks: less than all decodes
    fast = plans(seed, **chunked, **budget)
    assert fast == plans(seed, **chunked, **budget, max_loras=1)
    assert any(len(plan.scheduled_cached_reqs.request_ids) > 1 for plan in fast)


@pytest.mark.parametrize("caches", [False, True])
@pytest.mark.parametrize("num_tokens_left", range(8, 20))
def test_so_many_decodes_find_budget_as_do_one_by_one(caches: bool, num_tokens_left: int) -> None:
    """With prefix caching V0 hands out whole blocks of what is left, to decodes as well."""
    config = make_v0_config(enable_prefix_caching=caches)
    token_count = TokenCount(BlockTables(config, Journal()))
    budget = SchedulingBudget(num_tokens_left, max_num_seqs=64)
    together = token_count.max_decodes(budget, chunks=True)
    one_by_one = 0
    while token_count.of_started(make_request(), budget, chunks=True):
        one_by_one += 1
        budget.add_tokens(f"r{one_by_one}", 1)
    assert together == one_by_one > 0
