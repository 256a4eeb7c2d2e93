"""`python -m tests.sim.run --seeds N --start K`: simulate histories, stop at the first that fails.

Knows nothing about what is simulated. Invariant: a seed printed here gives the same history again.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from scheduler_svc.policies import load_policy
from tests.sim.cluster import PATIENCE_MS, Cluster
from tests.sim.faults import Faults
from tests.sim.settings import Settings, draw_settings
from tests.sim.world import Violation

logging.getLogger("segue.scheduler").setLevel(logging.CRITICAL)  # outages are the point here


class Failure(AssertionError):
    """One world failed: the seed, the last events, and why."""


def simulate(seed: int, draw: Callable[[random.Random], Settings] = draw_settings) -> Counter[str]:
    """One world, from its start until all is quiet; raises `Failure`.

    `draw` may choose another policy (docs/policies.md).
    """
    cluster = Cluster(seed, draw=draw)
    try:
        _simulate(cluster)
    except Exception as error:
        raise Failure(describe(seed, draw=draw)) from error
    counts = cluster.checkers.counts
    counts["events"] += cluster.world.num_events
    return counts


def describe(
    seed: int,
    num_lines: int = 60,
    draw: Callable[[random.Random], Settings] = draw_settings,
) -> str:
    """The same world once more, now with every message noted: its last events, and what failed."""
    cluster = Cluster(seed, is_verbose=True, draw=draw)
    try:
        _simulate(cluster)
    except Exception:  # noqa: BLE001 - whatever it is, the seed is to be printed with it
        events = "\n".join(list(cluster.world.log)[-num_lines:])
        reason = traceback.format_exc(limit=-4, chain=False)
        return f"seed {seed}, the last events:\n{events}\n{reason}"
    return f"seed {seed} failed once, and not again: the world depends on something else"


def _simulate(cluster: Cluster) -> None:
    world = cluster.world
    random.seed(world.seed)  # the lease keeper's jitter
    cluster.start()
    cluster.workload.plan(world.rng.randrange(4, 18), 1200)
    Faults(cluster).plan()
    if not world.run(cluster.is_quiet, world.now + PATIENCE_MS):
        raise Violation(f"I12: {cluster.describe_stuck()}")
    cluster.checkers.at_end()


def main() -> int:
    parser = argparse.ArgumentParser(description="simulate histories with faults")
    parser.add_argument("--seeds", type=int, default=500)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--keep-going", action="store_true", help="count failures by their kind")
    parser.add_argument("--describe", type=int, help="only this seed, with all its events")
    parser.add_argument("--policy", default="unified", help="as the scheduler's --policy")
    args = parser.parse_args()
    make_policy = load_policy(args.policy)

    def draw(rng: random.Random) -> Settings:
        return replace(draw_settings(rng), make_policy=make_policy)

    if args.describe is not None:
        print(describe(args.describe, 2000, draw))
        return 0
    began, totals = time.perf_counter(), Counter[str]()
    failures: dict[str, list[int]] = {}
    for seed in range(args.start, args.start + args.seeds):
        try:
            totals.update(simulate(seed, draw))
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
