"""Kinds of worlds beside the plain one: priorities that displace, drafts, V0's queues.

Knows settings, and nothing of what happens in a world. Invariant: the same seed draws the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from scheduler_svc.core.three_queue.config import ThreeQueueConfig
from scheduler_svc.core.three_queue.scheduler import ThreeQueueScheduler
from tests.sim.planted_step_faults import crowded
from tests.sim.settings import Settings, draw_settings


def preempting_for_admission(rng: random.Random) -> Settings:
    return by_priority(rng, preempt_for_admission=True)


def preempting_and_ageing(rng: random.Random) -> Settings:
    return by_priority(rng, preempt_for_admission=True, priority_aging_ms=rng.choice((1, 50, 400)))


def by_priority(rng: random.Random, **fields: Any) -> Settings:
    settings = draw_settings(rng)
    scheduler = replace(settings.engine.scheduler, policy="priority", **fields)
    return replace(settings, engine=replace(settings.engine, scheduler=scheduler))


def crowded_and_displacing(rng: random.Random) -> Settings:
    """Few seats and blocks, so that the important find less important ones in their place."""
    settings = crowded(rng)
    scheduler = replace(
        settings.engine.scheduler,
        strict=False,
        max_num_seqs=rng.choice((1, 2)),
        preempt_for_admission=True,
        priority_aging_ms=rng.choice((0, 1, 50, 400)),
    )
    engine = replace(settings.engine, scheduler=scheduler, max_queued_requests=1000)
    return replace(settings, engine=engine, num_executors=1, num_blocks=(22,))


def drafting(rng: random.Random) -> Settings:
    """Two steps in flight, so that plans count drafts that were rejected meanwhile."""
    settings = draw_settings(rng)
    scheduler = replace(
        settings.engine.scheduler, async_scheduling=True, num_spec_tokens=rng.choice((1, 2, 5))
    )
    return replace(settings, engine=replace(settings.engine, scheduler=scheduler, depth=2))


def three_queues(rng: random.Random) -> Settings:
    """As V0 is configured: prompts in chunks or not, recomputed or swapped out, few CPU blocks."""
    settings = draw_settings(rng)
    common = settings.engine.scheduler
    config = ThreeQueueConfig(
        block_size=common.block_size,
        max_num_seqs=common.max_num_seqs,
        max_num_batched_tokens=max(common.max_model_len, common.max_num_batched_tokens),
        max_model_len=common.max_model_len,
        policy=common.policy,
        enable_prefix_caching=rng.random() < 0.6,
        enable_chunked_prefill=rng.random() < 0.5,
        watermark=rng.choice((0.01, 0.2)),
        num_cpu_blocks=rng.choice((0, 8, 64)),
        preemption_mode=rng.choice(("recompute", "swap", "swap")),
        delay_factor=rng.choice((0.0, 0.0, 1.0)),
    )
    if config.enable_chunked_prefill:
        config = replace(config, max_num_batched_tokens=max(8, common.max_num_batched_tokens))
    engine = replace(settings.engine, scheduler=config, depth=1)
    return replace(settings, engine=engine, make_policy=ThreeQueueScheduler)


WORLDS: dict[str, Callable[[random.Random], Settings]] = {
    "plain": draw_settings,
    "priority": preempting_and_ageing,
    "displacing": crowded_and_displacing,
    "drafts": drafting,
    "three_queue": three_queues,
}
