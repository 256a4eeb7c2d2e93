"""What a policy is worth: FIFO batching, `three_queue` and `unified` on a recorded load, simulated.

`python tests/bench/bench_policies.py [--json FILE] [--plots DIRECTORY]`, or `python -m
tests.bench.bench_policies`. The policies are the real ones of `scheduler_svc/core`; what a step
takes is a stated model (`cost_model.py`), and the clock is virtual, so the figures are the same on
every machine. Knows only which parts there are. Invariant: all figures that docs/policies.md tells
of it are printed.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # so that it runs as a file, too

from tests.bench.policy_cases import run_all
from tests.bench.policy_sweeps import all_cases
from tests.bench.policy_tables import print_tables, report


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    parser.add_argument("--plots", type=Path, help="draw the figures into this directory, too")
    arguments = parser.parse_args()
    outcomes = run_all(all_cases())
    print_tables(outcomes)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report(outcomes), indent=1) + "\n")
    if arguments.plots is not None:
        from tests.bench.policy_plots import draw  # slow to import, and not needed to measure

        draw(outcomes, arguments.plots)


if __name__ == "__main__":
    main()
