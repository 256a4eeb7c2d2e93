"""Each fault of PROTOCOL.md section 7, planted, is caught within 2,000 worlds.

Rows that do not apply: "rewrite over another's history" (H13), since this scheduler never rewrites:
a leader whose commit is *lost* ends, and the next one loads what there is. Beyond that section: H15
(torn), H18 by I11 (executors' refusals heal it otherwise), H20, H21, H24, H32, dispatch before
commit, and an answer on another stream than the hello's. `python -m tests.sim.teeth` prints when
each is caught, and as what.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.sim.planted_faults import PLANTS
from tests.sim.teeth import first_catch

MAX_WORLDS = 2000


@pytest.mark.timeout(100)  # most are caught within a second; rare ones within some hundred worlds
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_caught(plant: Callable[[pytest.MonkeyPatch], None]) -> None:
    assert first_catch(plant, MAX_WORLDS) is not None
