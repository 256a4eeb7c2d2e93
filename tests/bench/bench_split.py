"""What the split costs: the whole line against the same scheduler and executor in one process.

`python -m tests.bench.bench_split [--model DIR] [--streams 1,8,32] [--rounds N] [--json FILE]
[-- FLAG…]` (flags of `segue serve`). `segue serve`, with its gateway, Redis and gRPC, and the same
policy and runner in a process with nothing between them, are given the same closed loop in turns,
so that whatever else the machine does meets both. The client and the gateway run on this machine's
cores too. The figure is the line's tokens/s over those in process; a ratio of 1 is a free split.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import uvloop

from segue.bench.workload import BenchRequest
from tests.bench.bench_serving import default_model, vocab_size
from tests.bench.closed_loop import Load, run_closed_loop
from tests.served import Served

SEED = 20_241_130
TARGET_RATIO = 0.95
Measure = Callable[[Load, int], float]
"""(load, seed) -> tokens/s."""


class InProcess:
    """The line in a process of its own, so that its model has the memory that the other's has."""

    def __init__(self, model: Path, num_threads: int) -> None:
        command = [sys.executable, "-m", "tests.bench.bench_split", "--in-process"]
        command += ["--model", str(model), "--num-threads", str(num_threads)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    def measure(self, load: Load, seed: int) -> float:
        requests = load.requests(random.Random(seed))
        asked = [(request.prompt, request.max_tokens) for request in requests]
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([asked, load.num_streams]) + "\n")
        self._process.stdin.flush()
        seconds = float(self._process.stdout.readline())
        return sum(request.max_tokens for request in requests) / seconds

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def serve_in_process(model: Path, num_threads: int) -> None:
    """Loads that come as lines, until there are no more."""
    from tests.bench.in_process_line import InProcessLine  # torch: only this process needs it

    line = InProcessLine(model, num_threads)
    for text in sys.stdin:
        asked, num_streams = json.loads(text)
        requests = [BenchRequest(tuple(prompt), max_tokens) for prompt, max_tokens in asked]
        print(line.run(requests, num_streams), flush=True)


def compare(
    sides: dict[str, Measure], load: Callable[[int], Load], streams: int, rounds: int
) -> dict[str, Any]:
    """The first round warms up; who begins changes from round to round."""
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name in sorted(sides, reverse=bool(turn % 2)):
            rate = sides[name](load(streams), SEED + 1000 * streams + turn)
            if turn:
                rates[name].append(rate)
    ratios = [line / alone for line, alone in zip(rates["line"], rates["in_process"], strict=True)]
    return {
        "streams": streams,
        "tokens_per_s": {name: round(median(values), 1) for name, values in rates.items()},
        "ratio": round(median(rates["line"]) / median(rates["in_process"]), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
    }


def measure(
    model: Path, arguments: argparse.Namespace, streams: Sequence[int]
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="segue-bench-") as directory:
        flags = [*arguments.flags, "--num-threads", str(arguments.num_threads)]
        served = Served(model, Path(directory) / "state", flags, environ={})
        in_process = InProcess(model, arguments.num_threads)

        def through_the_line(load: Load, seed: int) -> float:
            return uvloop.run(run_closed_loop(served.url, load, seed)).tokens_per_s

        def load(count: int) -> Load:
            return Load(
                served.model,
                vocab_size(model),
                count,
                arguments.requests_per_stream,
                output_tokens=arguments.output_tokens,
            )

        sides: dict[str, Measure] = {"line": through_the_line, "in_process": in_process.measure}
        try:
            for count in streams:
                rows.append(compare(sides, load, count, arguments.rounds))
                print_row(rows[-1])
        finally:
            in_process.stop()
            served.stop()
    return rows


def print_row(row: dict[str, Any]) -> None:
    rates = row["tokens_per_s"]
    print(
        f"{row['streams']:>3} streams: {rates['line']} tok/s through the line, "
        f"{rates['in_process']} in process; ratio {row['ratio']} (target {TARGET_RATIO}; "
        f"by round {', '.join(map(str, row['ratios']))})",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, help="model directory; default: the demo model")
    parser.add_argument("--streams", default="1,8,32", help="numbers of streams (default 1,8,32)")
    parser.add_argument("--rounds", type=int, default=3, help="of each, in turns (default 3)")
    parser.add_argument("--requests-per-stream", type=int, default=1)
    parser.add_argument("--output-tokens", type=int, default=128)
    parser.add_argument("--num-threads", type=int, default=0, help="0: torch's choice")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    parser.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("flags", nargs="*", help="flags of `segue serve`, behind --")
    arguments = parser.parse_args()
    if arguments.in_process:
        serve_in_process(arguments.model, arguments.num_threads)
        return
    with tempfile.TemporaryDirectory(prefix="segue-bench-model-") as directory:
        model = arguments.model or default_model(Path(directory))
        streams = [int(count) for count in arguments.streams.split(",")]
        report = {"model": model.name, "loads": measure(model, arguments, streams)}
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
