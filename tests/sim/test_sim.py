"""Histories with faults, one for each seed: every invariant of DESIGN.md section 3 holds in all.

SEEDS says how many (500 by default). A seed that fails is printed with its last events; the same
history again: `python -m tests.sim.run --start SEED --seeds 1`, or `--describe SEED` for all of it.
"""

from __future__ import annotations

import os

import pytest

from tests.sim.simulation import describe, simulate

SEEDS = int(os.environ.get("SEEDS", "500"))
SEEDS_A_TEST = 20


@pytest.mark.timeout(60)  # a chunk is a second's work; other work may be on the machine
@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_A_TEST))
def test_every_invariant_holds_in_every_history(first: int) -> None:
    for seed in range(first, min(first + SEEDS_A_TEST, SEEDS)):
        simulate(seed)


def test_a_seed_gives_the_same_history_each_time() -> None:
    assert simulate(7) == simulate(7)
    first, second = (describe(11).splitlines() for _ in range(2))
    assert first == second
