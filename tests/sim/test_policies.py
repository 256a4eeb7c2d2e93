"""The simulation with its checks, on a policy that is not ours and on what is off by default."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from examples.shortest_job_first import ShortestJobFirst
from scheduler_svc.core.three_queue.config import ThreeQueueConfig
from scheduler_svc.core.three_queue.scheduler import ThreeQueueScheduler
from tests.sim.settings import Settings, draw_settings
from tests.sim.simulation import Scenario, simulate


def shortest_job_first(rng: random.Random) -> Settings:
    return replace(draw_settings(rng), make_policy=ShortestJobFirst)


@pytest.mark.parametrize("seed", range(8))
def test_a_custom_policy_keeps_every_invariant(seed: int) -> None:
    assert simulate(seed, Scenario(draw=shortest_job_first))["events"] > 0


def preempting_for_admission(rng: random.Random) -> Settings:
    return by_priority(rng, preempt_for_admission=True)


def preempting_and_ageing(rng: random.Random) -> Settings:
    return by_priority(rng, preempt_for_admission=True, priority_aging_ms=rng.choice((1, 50, 400)))


def by_priority(rng: random.Random, **fields: Any) -> Settings:
    settings = draw_settings(rng)
    scheduler = replace(settings.engine.scheduler, policy="priority", **fields)
    return replace(settings, engine=replace(settings.engine, scheduler=scheduler))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("draw", [preempting_for_admission, preempting_and_ageing])
def test_preemption_at_admission_keeps_every_invariant(
    draw: Callable[[random.Random], Settings], seed: int
) -> None:
    """Also I12: all requests end, whoever may pass whom."""
    assert simulate(seed, Scenario(draw=draw))["events"] > 0


def drafting(rng: random.Random) -> Settings:
    """Two steps in flight, so that plans count drafts that were rejected meanwhile."""
    settings = draw_settings(rng)
    scheduler = replace(
        settings.engine.scheduler, async_scheduling=True, num_spec_tokens=rng.choice((1, 2, 5))
    )
    return replace(settings, engine=replace(settings.engine, scheduler=scheduler, depth=2))


@pytest.mark.parametrize("seed", range(200, 230))
def test_drafts_keep_every_invariant(seed: int) -> None:
    """Whatever is killed while drafts are in flight, each client sees one text (I8)."""
    assert simulate(seed, Scenario(draw=drafting))["events"] > 0


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


@pytest.mark.parametrize("seed", range(100, 130))
def test_three_queues_keep_every_invariant(seed: int) -> None:
    assert simulate(seed, Scenario(draw=three_queues))["events"] > 0
