"""`python -m tests.sim.run --seeds N --start K`: simulate histories, stop at the first that fails.

Knows nothing about what is simulated. `--describe SEED` prints all that happens in one world.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from dataclasses import replace

from scheduler_svc.policies import load_policy
from tests.sim.settings import Settings
from tests.sim.simulation import Failure, Scenario, describe, simulate
from tests.sim.worlds import WORLDS


def main() -> int:
    parser = argparse.ArgumentParser(description="simulate histories with faults")
    parser.add_argument("--seeds", type=int, default=500)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--keep-going", action="store_true", help="count failures by their kind")
    parser.add_argument("--describe", type=int, help="only this seed, with all its events")
    parser.add_argument("--policy", help="as the scheduler's --policy; else the world's own")
    parser.add_argument("--world", choices=WORLDS, default="plain", help="how it is configured")
    args = parser.parse_args()
    make_policy = load_policy(args.policy) if args.policy else None

    def draw(rng: random.Random) -> Settings:
        settings = WORLDS[args.world](rng)
        return replace(settings, make_policy=make_policy or settings.make_policy)

    scenario = Scenario(draw=draw)
    if args.describe is not None:
        print(describe(args.describe, scenario, num_lines=10_000))
        return 0
    began, totals = time.perf_counter(), Counter[str]()
    failures: dict[str, list[int]] = {}
    for seed in range(args.start, args.start + args.seeds):
        try:
            totals.update(simulate(seed, scenario))
        except Failure as failure:
            if not args.keep_going:
                print(failure)
                return 1
            last = str(failure).strip().splitlines()[-1][:110]
            failures.setdefault(last, []).append(seed)
    for kind, seeds in sorted(failures.items(), key=lambda item: -len(item[1])):
        print(f"{len(seeds):5d} x {kind} {seeds[:6]}")
    print(f"{args.seeds} seeds in {time.perf_counter() - began:.1f} s; {dict(totals)}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
