"""Random lives of a lane: each text is right, nothing leaks, everybody gets to an end."""

from __future__ import annotations

import copy
import json
import random
from dataclasses import replace

import pytest

from scheduler_svc.core.stop_check import make_finish
from scheduler_svc.core.three_queue.config import ThreeQueueConfig
from segue.types import FinishReason
from tests.three_queue_lane import ThreeQueueLane, make_v0_config, next_token

CONFIGS = {
    "default": make_v0_config(num_gpu_blocks=14),
    "chunked": make_v0_config(
        num_gpu_blocks=14, enable_chunked_prefill=True, max_num_batched_tokens=12
    ),
    "cached": make_v0_config(num_gpu_blocks=14, enable_prefix_caching=True),
    "cached and chunked": make_v0_config(
        num_gpu_blocks=14,
        enable_prefix_caching=True,
        enable_chunked_prefill=True,
        max_num_batched_tokens=16,
    ),
    "swap": make_v0_config(num_gpu_blocks=14, num_cpu_blocks=9, preemption_mode="swap"),
    "swap, with a watermark": make_v0_config(
        num_gpu_blocks=14, num_cpu_blocks=40, preemption_mode="swap", watermark=0.3
    ),
    "swap, cached and chunked": make_v0_config(
        num_gpu_blocks=14,
        num_cpu_blocks=20,
        preemption_mode="swap",
        enable_prefix_caching=True,
        enable_chunked_prefill=True,
        max_num_batched_tokens=16,
    ),
    "priority and swap": make_v0_config(
        num_gpu_blocks=14, num_cpu_blocks=20, preemption_mode="swap", policy="priority"
    ),
    "swap, and all at once": make_v0_config(
        num_gpu_blocks=14,
        num_cpu_blocks=12,
        preemption_mode="swap",
        policy="priority",
        enable_prefix_caching=True,
        max_loras=2,
        delay_factor=1.5,
        max_paddings=20,
        num_lookahead_slots=2,
    ),
}


def live_a_little(lane: ThreeQueueLane, rng: random.Random, name: str) -> None:
    """One random event; the same for two lanes that are in the same state."""
    choice = rng.random()
    alive = [request for request in lane.requests.values() if not request.is_finished]
    if choice < 0.2:
        prompt = [rng.randrange(2) for _ in range(rng.randrange(1, 30))]
        adapter = rng.choice(["", "1", "2", "10"]) if lane.config.max_loras else ""
        lane.add(
            name,
            prompt,
            max_tokens=rng.randrange(1, 20),
            adapter=adapter,
            priority=rng.randrange(3),
            arrival_unix_ms=lane.now_ms,
        )
    elif choice < 0.22 and alive:
        request = rng.choice(alive)
        lane.scheduler.finish_request(request, make_finish(request, FinishReason.ABORT), 0)
    elif choice < 0.23 and alive:
        request = rng.choice(alive)
        lane.scheduler.release_with_drop(request)
        lane.scheduler.prepend_requests([request])
    elif choice < 0.24:
        lane.scheduler.preempt_all()
    elif choice < 0.245:
        lane.lose_generation()
    elif choice < 0.25:
        lane.scheduler.reset_prefix_cache(reset_running=rng.random() < 0.5)
    elif lane.planned is None:
        lane.plan()
    else:
        lane.answer()


def text_of(prompt: list[int], num_tokens: int) -> list[int]:
    token_ids = list(prompt)
    for _ in range(num_tokens):
        token_ids.append(next_token(token_ids))
    return token_ids


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("seed", range(3))
def test_each_text_is_right_and_everybody_ends(name: str, seed: int) -> None:
    rng = random.Random(f"{name} {seed}")
    lane = ThreeQueueLane(CONFIGS[name])
    for tick in range(300):
        live_a_little(lane, rng, f"r{tick}")
        lane.check()
    drain(lane)
    assert num_complete(lane) > 10


def drain(lane: ThreeQueueLane) -> None:
    """Nothing comes any more: each step has to bring somebody further."""
    if lane.planned is not None:
        lane.answer()
    for _ in range(3000):
        if not lane.scheduler.num_unfinished():
            break
        plan = lane.step()
        assert plan.num_scheduled_tokens or plan.preempted_req_ids or plan.finished_req_ids
    assert not lane.scheduler.num_unfinished()
    assert lane.scheduler.num_free_blocks() == lane.config.num_gpu_blocks
    assert lane.scheduler.lane.tables.cpu.num_free == lane.config.num_cpu_blocks


def num_complete(lane: ThreeQueueLane) -> int:
    """How many came to their last token; each text is that of an undisturbed run."""
    count = 0
    for request in lane.requests.values():
        prompt = request.all_token_ids[: request.num_prompt_tokens]
        assert request.all_token_ids == text_of(prompt, request.num_output_tokens)
        max_tokens = request.submission.sampling_params.max_tokens
        count += request.num_output_tokens == max_tokens
    return count


@pytest.mark.parametrize("is_strict", [False, True])
@pytest.mark.parametrize("name", [name for name in CONFIGS if "swap" not in name])
def test_a_restored_lane_goes_on_as_the_stored_one(name: str, is_strict: bool) -> None:
    check_restoring(replace(CONFIGS[name], strict=is_strict), random.Random(name))


@pytest.mark.parametrize("name", [name for name in CONFIGS if "swap" in name])
def test_a_restored_lane_with_swapped_requests_goes_on_as_the_stored_one(name: str) -> None:
    """A strict one would fail in the middle of it."""
    check_restoring(CONFIGS[name], random.Random(name))


def check_restoring(config: ThreeQueueConfig, rng: random.Random) -> None:
    lane = ThreeQueueLane(config)
    for tick in range(300):
        live_a_little(lane, rng, f"r{tick}")
        if tick % 37:
            continue
        ours, other = copy.deepcopy(lane), lane.restored()
        assert json.dumps(other.scheduler.scalars()) == json.dumps(lane.scheduler.scalars())
        state = rng.getstate()
        for each in (ours, other):
            rng.setstate(state)
            for later in range(30):
                live_a_little(each, rng, f"r{tick}-{later}")
        assert other.planned == ours.planned
        assert other.scheduler.scalars() == ours.scheduler.scalars()
        all_blocks = range(config.num_gpu_blocks)
        assert other.scheduler.block_rows(all_blocks) == ours.scheduler.block_rows(all_blocks)
