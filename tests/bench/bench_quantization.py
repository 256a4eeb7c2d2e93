"""What a step of the executor costs with each `--quantization`, in turns.

`python -m tests.bench.bench_quantization [--model DIR] [--streams 1,8,32] [--threads N]`
As `bench_executor`: each turn is a process of its own without scheduler and gRPC, and the best of
each counts, of the wall and of the CPU.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from executor_svc.quantization import QUANTIZATIONS
from tests.bench.bench_executor import ROUNDS, argument_parser, best_of, run_turn
from tests.bench.bench_serving import default_model


def main() -> None:
    args = argument_parser(__doc__).parse_args()
    turns: dict[str, list[dict[str, Any]]] = {name: [] for name in QUANTIZATIONS}
    with tempfile.TemporaryDirectory() as scratch:
        args.model = args.model or default_model(Path(scratch))
        for _ in range(ROUNDS):
            for name, rounds in turns.items():
                one = argparse.Namespace(**vars(args) | {"quantization": name})
                rounds.append(run_turn(one, "native"))
    best = {name: best_of(rounds) for name, rounds in turns.items()}
    _print_table(best)
    if args.json:
        args.json.write_text(json.dumps(best, indent=2) + "\n")


def _print_table(best: dict[str, Any]) -> None:
    names = list(best)
    print(f"{'step':<16}" + "".join(f"{f'{name} ms':>10}{'CPU ms':>10}" for name in names))
    for step in best[names[0]]:
        times = [best[name][step] for name in names]
        print(f"{step:<16}" + "".join(f"{one['wall_ms']:>10}{one['cpu_ms']:>10}" for one in times))


if __name__ == "__main__":
    main()
