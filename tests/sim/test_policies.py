"""The simulation with its checks, on a policy that is not ours and on what is off by default."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from examples.shortest_job_first import ShortestJobFirst
from tests.sim.run import simulate
from tests.sim.settings import Settings, draw_settings


def shortest_job_first(rng: random.Random) -> Settings:
    return replace(draw_settings(rng), make_policy=ShortestJobFirst)


@pytest.mark.parametrize("seed", range(8))
def test_a_custom_policy_keeps_every_invariant(seed: int) -> None:
    assert simulate(seed, shortest_job_first)["events"] > 0


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
    assert simulate(seed, draw)["events"] > 0
