"""SEEDS seeded histories of the production core (500 by default), every invariant checked.

`make sim SEEDS=100000` runs more. A failure prints its seed and the last events.
"""

from __future__ import annotations

import os

import pytest

from tests.sim.run import simulate

SEEDS = int(os.environ.get("SEEDS", "500"))
SEEDS_PER_TEST = 10


@pytest.mark.timeout(60)
@pytest.mark.parametrize("start", range(0, SEEDS, SEEDS_PER_TEST))
def test_histories_keep_every_invariant(start: int) -> None:
    for seed in range(start, min(start + SEEDS_PER_TEST, SEEDS)):
        counts = simulate(seed)
        assert counts["commit applied"] > 0
