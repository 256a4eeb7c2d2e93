"""I10 for one lane: a policy restored from what is stored decides as the one that was stored."""

from __future__ import annotations

import copy
import json
import random

import pytest

from scheduler_svc.core.request import QueueName, Request
from scheduler_svc.core.scheduler_config import SchedulerConfig
from scheduler_svc.core.stop_check import make_finish
from segue.types import FinishReason
from tests.factories import LaneDriver, make_config, make_request

CONFIGS = {
    "fcfs": make_config(num_gpu_blocks=15, async_scheduling=True),
    "priority": make_config(num_gpu_blocks=15, async_scheduling=True, policy="priority"),
    "without overlap": make_config(num_gpu_blocks=15, long_prefill_token_threshold=5),
    "no cache": make_config(num_gpu_blocks=15, async_scheduling=True, enable_prefix_caching=False),
}


def restored(lane: LaneDriver, config: SchedulerConfig) -> LaneDriver:
    """A second lane, made only of what a store would have."""
    other = LaneDriver(config)
    other.requests.update(copy.deepcopy(lane.requests))
    queued = [request for request in other.requests.values() if request.queue is not None]
    for request in queued:
        request.num_registered_blocks = 0
    by_queue = {name: [r for r in queued if r.queue is name] for name in QueueName}
    in_order: list[Request] = []
    for requests in by_queue.values():
        in_order += sorted(requests, key=lambda request: request.queue_rank)
    scalars = json.loads(json.dumps(lane.scheduler.scalars()))
    blocks = list(lane.scheduler.block_rows(lane.scheduler.touched_block_ids()))
    other.scheduler.restore(in_order, blocks, scalars)
    other.scheduler.set_pause_state(lane.scheduler.pause_state)
    other.planned = list(lane.planned)
    other._step_id = lane._step_id  # the engine's row has it
    return other


def live_a_little(lane: LaneDriver, rng: random.Random, tick: int) -> None:
    """One random event; the same for two lanes that are in the same state."""
    depth = lane.scheduler.max_steps_in_flight
    choice = rng.random()
    if choice < 0.25:
        prompt = [rng.randrange(2) for _ in range(rng.randrange(1, 24))]
        fields = {"priority": rng.randrange(3), "arrival_unix_ms": tick}
        lane.add(make_request(f"r{tick}", prompt, max_tokens=rng.randrange(1, 12), **fields))
    elif choice < 0.3:
        alive = [r for r in lane.requests.values() if not r.is_finished]
        if alive:
            request = rng.choice(alive)
            finish = make_finish(request, FinishReason.ABORT)
            lane.scheduler.finish_request(request, finish, 0)
    elif choice < 0.32:
        lane.scheduler.reset_prefix_cache(reset_running=True)
    elif choice < 0.7 and len(lane.planned) < depth:
        lane.plan()
    elif lane.planned:
        lane.answer()


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("seed", range(6))
def test_a_restored_lane_goes_on_as_the_stored_one(name: str, seed: int) -> None:
    rng = random.Random(seed)
    lane = LaneDriver(CONFIGS[name])
    for tick in range(300):
        live_a_little(lane, rng, tick)
        if tick % 29:
            continue
        other = restored(lane, CONFIGS[name])
        assert other.scheduler.scalars() == lane.scheduler.scalars()
        state = rng.getstate()
        ours = copy.deepcopy(lane)
        for later in range(25):
            live_a_little(ours, rng, 1000 * (tick + 1) + later)
        rng.setstate(state)
        for later in range(25):
            live_a_little(other, rng, 1000 * (tick + 1) + later)
        assert other.planned == ours.planned
        all_blocks = range(1, CONFIGS[name].num_gpu_blocks)
        ours_rows = [row[:3] + row[4:] for row in ours.scheduler.block_rows(all_blocks)]
        other_rows = [row[:3] + row[4:] for row in other.scheduler.block_rows(all_blocks)]
        assert other_rows == ours_rows
