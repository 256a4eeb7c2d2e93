"""`python -m tests.sim.teeth [NAME…]`: plants each fault and prints when it is caught, and as what.

Knows nothing about faults or invariants. Invariant: nothing stays planted.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.sim.planted_faults import PLANTS, SEEN_AS
from tests.sim.simulation import Failure, simulate


@dataclass(slots=True, frozen=True)
class Catch:
    seed: int
    reason: str


def first_catch(plant: Callable[[pytest.MonkeyPatch], None], max_worlds: int) -> Catch | None:
    """The first world that fails for the planted reason."""
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        for seed in range(max_worlds):
            try:
                simulate(seed, PLANTS[plant])
            except Failure as failure:
                reason = str(failure).strip().splitlines()[-1]
                if re.search(SEEN_AS.get(plant, ""), reason):
                    return Catch(seed, reason)
    return None


def main() -> int:
    for plant in PLANTS:
        if sys.argv[1:] and plant.__name__ not in sys.argv[1:]:
            continue
        began = time.process_time()
        catch = first_catch(plant, 2000)
        seconds = time.process_time() - began
        what = f"seed {catch.seed}: {catch.reason[:100]}" if catch is not None else "NOT CAUGHT"
        print(f"{plant.__name__:30} {seconds:5.1f} s  {what}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
