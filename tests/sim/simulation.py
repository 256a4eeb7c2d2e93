"""One seed, one world, from its start until all is quiet; and its description if it fails.

Knows nothing about what is simulated. Invariant: a seed gives the same history each time, so one
that failed is run again to put every message into words.
"""

from __future__ import annotations

import itertools
import logging
import random
import traceback
from collections import Counter
from dataclasses import dataclass
from unittest import mock

from tests.sim.cluster import PATIENCE_MS, Cluster
from tests.sim.faults import Faults
from tests.sim.settings import Draw, draw_settings
from tests.sim.world import Violation

logging.getLogger("segue.scheduler").setLevel(logging.CRITICAL)  # outages are the point here
LAST_CALL_MS = 1500
NUM_LINES = 60


class Failure(AssertionError):
    """One world failed: the seed, the last events, and why."""


@dataclass(slots=True, frozen=True)
class Scenario:
    """`certain`: faults that come in every world. `is_calm`: no others do. `draw`: the settings."""

    certain: tuple[str, ...] = ()
    is_calm: bool = False
    draw: Draw = draw_settings
    num_calls: range = range(4, 14)


class LeaderIds:
    """In place of `secrets` in the lease keeper, so that a history can be told again."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def token_hex(self, num_bytes: int) -> str:
        del num_bytes
        return f"leader-{next(self._numbers)}"


def simulate(seed: int, scenario: Scenario = Scenario()) -> Counter[str]:
    """Raises `Failure`; returns what was counted."""
    cluster = Cluster(seed, scenario.draw)
    try:
        _simulate(cluster, scenario)
    except Exception as error:
        raise Failure(describe(seed, scenario)) from error
    counts = cluster.checkers.counts
    counts["events"] += cluster.world.num_events
    return counts


def describe(seed: int, scenario: Scenario = Scenario(), num_lines: int = NUM_LINES) -> str:
    """The same world once more, now with every message noted: its last events, and what failed."""
    cluster = Cluster(seed, scenario.draw, is_verbose=True)
    try:
        _simulate(cluster, scenario)
    except Exception:  # noqa: BLE001 - whatever it is, the seed is to be printed with it
        events = "\n".join(list(cluster.world.log)[-num_lines:])
        reason = traceback.format_exc(limit=-4, chain=False)
        return f"seed {seed}, the last events:\n{events}\n{reason}"
    return f"seed {seed}: nothing failed"


def _simulate(cluster: Cluster, scenario: Scenario) -> None:
    world = cluster.world
    random.seed(world.seed)  # the lease keeper's jitter
    with mock.patch("scheduler_svc.lease.secrets", LeaderIds()):
        cluster.start()
        cluster.workload.plan(world.rng.choice(scenario.num_calls), LAST_CALL_MS)
        Faults(cluster, scenario.certain, is_calm=scenario.is_calm).plan()
        if not world.run(cluster.is_quiet, world.now + PATIENCE_MS):
            raise Violation(f"I12: {cluster.describe_stuck()}")
    cluster.checkers.at_end()
