"""What a step of the executor costs, alone in a process: no scheduler, no gRPC, no Redis.

`python -m tests.bench.bench_executor [--model DIR] [--streams 1,8,32] [--threads N] [--json FILE]`
Our compiled kernels and torch's take turns, in processes of their own, and the best of each counts.
Times are of the wall and of the CPU: the second says something on a shared machine as well.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.bench.bench_serving import default_model

ROUNDS = 2
PROMPT_TOKENS = 128
WARM_UP_STEPS, STEPS = 4, 24
LONG_PROMPT_TOKENS = 512
NUM_BLOCKS = 1024


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--quantization", default="none")
    parser.add_argument("--turn", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.turn:
        print(json.dumps(_turn(args)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        args.model = args.model or default_model(Path(scratch))
        turns = {
            kind: [run_turn(args, kind) for _ in range(ROUNDS)] for kind in ("native", "torch")
        }
    best = {kind: best_of(rounds) for kind, rounds in turns.items()}
    _print_table(best)
    if args.json:
        args.json.write_text(json.dumps(best, indent=2) + "\n")


def argument_parser(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--streams", default="1,8,32")
    parser.add_argument("--threads", type=int, default=0, help="0: torch's choice")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--json", type=Path)
    return parser


def run_turn(args: argparse.Namespace, kind: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.bench.bench_executor", "--turn"]
    command += ["--model", str(args.model), "--streams", args.streams, "--dtype", args.dtype]
    command += ["--threads", str(args.threads), "--quantization", args.quantization]
    environ = os.environ | {"SEGUE_NATIVE_KERNELS": "1" if kind == "native" else "0"}
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def _turn(args: argparse.Namespace) -> dict[str, Any]:
    import torch

    import kernels
    from executor_svc.model_loader import load_model
    from tests.executor_driver import ExecutorDriver

    kernels.set_num_threads(args.threads or torch.get_num_threads())
    model = load_model(args.model, args.dtype, args.quantization)
    driver = ExecutorDriver(model, NUM_BLOCKS, keeps_logits=False)
    gc.collect()
    gc.freeze()  # as the service does
    rng = random.Random(1)
    vocab_size = min(256, driver.runner.capacity.vocab_size - 3)

    def prompt(length: int) -> list[int]:
        return [3 + rng.randrange(vocab_size) for _ in range(length)]

    found: dict[str, Any] = {}
    for streams in map(int, args.streams.split(",")):
        names = [f"{streams}-{index}" for index in range(streams)]
        for name in names:
            driver.add(name, prompt(PROMPT_TOKENS))
            driver.prefill(name)
        driver.decode(names, WARM_UP_STEPS)
        found[f"decode of {streams}"] = _timed(lambda names=names: driver.decode(names, 1), STEPS)
        for name in names:
            driver.finish(name)
    driver.add("long", prompt(LONG_PROMPT_TOKENS))
    found[f"prefill of {LONG_PROMPT_TOKENS}"] = _timed(lambda: driver.prefill("long"), 1)
    return found


def _timed(run: Any, count: int) -> dict[str, float]:
    """Medians, in milliseconds."""
    walls: list[float] = []
    cpus: list[float] = []
    for _ in range(count):
        wall, cpu = time.perf_counter(), time.process_time()
        run()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    middle = count // 2
    return {"wall_ms": sorted(walls)[middle] * 1e3, "cpu_ms": sorted(cpus)[middle] * 1e3}


def best_of(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        name: {clock: round(min(one[name][clock] for one in rounds), 1) for clock in first}
        for name, first in rounds[0].items()
    }


def _print_table(best: dict[str, Any]) -> None:
    print(
        f"{'step':<16}{'native ms':>10}{'torch ms':>10}{'ratio':>8}"
        f"{'native CPU':>12}{'torch CPU':>11}"
    )
    for name, native in best["native"].items():
        torchs = best["torch"][name]
        ratio = native["wall_ms"] / torchs["wall_ms"]
        print(
            f"{name:<16}{native['wall_ms']:>10}{torchs['wall_ms']:>10}{ratio:>8.2f}"
            f"{native['cpu_ms']:>12}{torchs['cpu_ms']:>11}"
        )


if __name__ == "__main__":
    main()
