"""The whole line under load: throughput, latency, who waits, and what a step costs the scheduler.

`python -m tests.bench.bench_serving [--model DIR] [--streams 1,8,32] [--json FILE] [-- FLAG…]`
(behind `--`: flags of `segue serve`). It starts `segue serve` as a user does, runs a closed loop
for each number of streams, then starts it again on the same state directory. Times inside are the
services' own (/metrics, before and after each loop). docs/performance.md explains the columns.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvloop

from segue.model_files.demo_model import SMOLLM2_135M, cache_dir
from segue.model_files.hand import write_hand_model
from tests.bench.closed_loop import Load, LoopResult, percentile, run_closed_loop
from tests.bench.served_counters import Counters, histogram_quantile
from tests.served import Served

SEED = 20_240_611
PARTS = ("schedule", "update", "commit", "encode", "emit")
COLUMNS = (
    ("streams", "streams"),
    ("tok/s", "tokens_per_s"),
    ("ttft p50", "ttft_ms_p50"),
    ("p99 ms", "ttft_ms_p99"),
    ("itl p50", "itl_ms_p50"),
    ("p99 ms", "itl_ms_p99"),
    ("idle %", "executor_idle_percent"),
    ("step ms", "executor_step_ms"),
    ("commit ms", "commit_ms_p50"),
    ("AOF B", "aof_bytes_per_step"),
)


def default_model(directory: Path) -> Path:
    """The demo model if it is here, else the hand model."""
    path = cache_dir() / "models" / SMOLLM2_135M.name
    if (path / "config.json").exists():
        return path
    print("the demo model is not here (`segue model fetch smollm2-135m`): the hand model is served")
    return write_hand_model(directory / "hand")


def measure_load(served: Served, load: Load, seed: int) -> dict[str, Any]:
    before = Counters.read(served)
    result = uvloop.run(run_closed_loop(served.url, load, seed))
    after = Counters.read(served)
    return figures(load, result, before, after)


def figures(load: Load, result: LoopResult, before: Counters, after: Counters) -> dict[str, Any]:
    scheduler, executor = after.scheduler_since(before), after.executor_since(before)
    num_steps = executor["segue:executor_steps_total"]
    idle_s = executor["segue:executor_idle_seconds_total"]
    busy_s = executor["segue:executor_busy_seconds_total"]
    commit_s = histogram_quantile(scheduler, "segue:commit_duration_seconds", 0.5)
    cpu_us = {
        part: round(scheduler[f"segue:{part}_seconds_total"] / num_steps * 1e6) for part in PARTS
    }
    return {
        "streams": load.num_streams,
        "requests": len(result.answers),
        "seconds": round(result.seconds, 2),
        "tokens_per_s": round(result.tokens_per_s, 1),
        "ttft_ms_p50": _ms(percentile(result.ttft_s, 0.5)),
        "ttft_ms_p99": _ms(percentile(result.ttft_s, 0.99)),
        "itl_ms_p50": _ms(percentile(result.itl_s, 0.5)),
        "itl_ms_p99": _ms(percentile(result.itl_s, 0.99)),
        "executor_idle_percent": round(100 * idle_s / (idle_s + busy_s), 1),
        "executor_step_ms": _ms(busy_s / num_steps),
        "steps": round(num_steps),
        "commit_ms_p50": _ms(commit_s),
        "aof_bytes_per_step": round((after.aof_bytes - before.aof_bytes) / num_steps),
        "scheduler_us_per_step": cpu_us,
        "cpu_ms_per_step": {
            name: _ms(seconds / num_steps) for name, seconds in after.cpu_since(before).items()
        },
    }


def measure_start(model: Path, state_dir: Path, flags: Sequence[str]) -> tuple[Served, float]:
    """Start `segue serve`, and the seconds from then to the first token of a first request."""
    started = time.perf_counter()
    served = Served(model, state_dir, flags, environ={})  # threads as it sets them
    load = Load(served.model, vocab_size(model), 1, 1, prompt_tokens=8, output_tokens=1)
    result = uvloop.run(run_closed_loop(served.url, load, SEED))
    seconds = time.perf_counter() - started - result.seconds + result.answers[0].ttft_s
    return served, seconds


def measure(model: Path, streams: Sequence[int], flags: Sequence[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="segue-bench-") as directory:
        state_dir = Path(directory) / "state"
        served, cold_s = measure_start(model, state_dir, flags)
        try:
            warm_up = Load(served.model, vocab_size(model), 4, 1)
            uvloop.run(run_closed_loop(served.url, warm_up, SEED + 1))
            loads: list[dict[str, Any]] = []
            for count in streams:
                load = Load(served.model, vocab_size(model), count)
                loads.append(measure_load(served, load, SEED + 2 + count))
                print_row(loads[-1])
        finally:
            served.stop()
        served, warm_s = measure_start(model, state_dir, flags)
        served.stop()
    return {
        "model": model.name,
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "flags": list(flags),
        "load_average_1min": round(os.getloadavg()[0], 2),
        "loads": loads,
        "first_start_to_first_token_s": round(cold_s, 2),
        "warm_start_to_first_token_s": round(warm_s, 2),
    }


def vocab_size(model: Path) -> int:
    return int(json.loads((model / "config.json").read_text())["vocab_size"])


def print_head() -> None:
    print("".join(f"{title:>10}" for title, _ in COLUMNS), flush=True)


def print_row(row: dict[str, Any]) -> None:
    print("".join(f"{row[name]:>10}" for _, name in COLUMNS), flush=True)


def print_costs(report: dict[str, Any]) -> None:
    print(
        "\nthe scheduler's CPU per step in µs, by its own clock; CPU of each process in ms per step"
    )
    for row in report["loads"]:
        parts = "  ".join(f"{k} {v}" for k, v in row["scheduler_us_per_step"].items())
        cpu = "  ".join(f"{k} {v}" for k, v in row["cpu_ms_per_step"].items())
        print(f"{row['streams']:>3} streams: {parts}  |  {cpu}")
    print(
        f"\nstart to first token: {report['first_start_to_first_token_s']} s on an empty state "
        f"directory, {report['warm_start_to_first_token_s']} s on one that has served"
    )


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, help="model directory; default: the demo model")
    parser.add_argument("--streams", default="1,8,32", help="numbers of streams (default 1,8,32)")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    parser.add_argument("flags", nargs="*", help="flags of `segue serve`, behind --")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="segue-bench-model-") as directory:
        model = arguments.model or default_model(Path(directory))
        print_head()
        streams = [int(count) for count in arguments.streams.split(",")]
        report = measure(model, streams, arguments.flags)
    print_costs(report)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
