"""What tracing every step costs: tokens/s of the whole line, and CPU of the scheduler's step.

`python -m tests.bench.bench_tracing [--model DIR] [--streams 8,32] [--rounds N] [--json FILE]`.
Two `segue serve` run at once, one of them traced in full, and are loaded in turns, so that whatever
else the machine does meets both: the figure is the ratio. Then the core with an executor that takes
no time, with and without its tracer, at 8, 32 and 256 requests: CPU of the loop's thread, and of
the thread that exports. Spans go to a collector that reads nothing, in a process of its own.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import uvloop

from scheduler_svc.core.scheduler_config import SchedulerConfig
from segue.tracing import names
from segue.tracing.provider import open_tracer
from segue.tracing.tracer import Tracer
from tests.bench.bench_serving import default_model, vocab_size
from tests.bench.closed_loop import Load, run_closed_loop
from tests.served import Served
from tests.traced_core import TracedCore, submission

SEED = 20_240_612
SIZES = (8, 32, 256)
NUM_WARMUP, NUM_MEASURED = 32, 128
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


@contextmanager
def collector() -> Iterator[str]:
    """Its address."""
    command = [sys.executable, "-m", "tests.bench.swallowing_collector"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.stdin.close()
            process.wait()


def measure_serving(
    model: Path, streams: Sequence[int], rounds: int, endpoint: str
) -> list[dict[str, Any]]:
    """tokens/s of both for each number of streams, in turns; the median of each."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="segue-bench-") as directory, ExitStack() as stack:
        served = {
            name: Served(model, Path(directory) / name, (), environ)
            for name, environ in (("untraced", {}), ("traced", {ENDPOINT: endpoint}))
        }
        for one in served.values():
            stack.callback(one.stop)
        for count in streams:
            rates: dict[str, list[float]] = {name: [] for name in served}
            for turn in range(rounds + 1):
                order = list(served) if turn % 2 else list(reversed(served))
                for name in order:
                    load = Load(served[name].model, vocab_size(model), count, 1)
                    result = uvloop.run(run_closed_loop(served[name].url, load, SEED + turn))
                    if turn:  # the first warms up
                        rates[name].append(result.tokens_per_s)
            ratio = median(rates["traced"]) / median(rates["untraced"])
            row = {name: round(median(values), 1) for name, values in rates.items()}
            rows.append({"streams": count, "tokens_per_s": row, "ratio": round(ratio, 3)})
            print(
                f"{count:>3} streams: {row['untraced']} tok/s untraced, {row['traced']} traced, "
                f"ratio {ratio:.3f}",
                flush=True,
            )
    return rows


def measure_core(num_requests: int, tracer: Tracer | None) -> tuple[float, float]:
    """µs of CPU a step: of the loop's thread, and of all threads of this process."""
    config = SchedulerConfig(
        block_size=16, max_num_seqs=512, max_num_batched_tokens=8192, max_model_len=2048
    )
    core = TracedCore(tracer, config)
    core.connect()
    asked = [submission(f"r{i}", 16, max_tokens=1000) for i in range(num_requests)]
    core.submit(*asked)
    for _ in range(NUM_WARMUP):
        core.answer()
    gc.collect()
    gc.freeze()
    thread_s, process_s = time.thread_time(), time.process_time()
    for _ in range(NUM_MEASURED):
        core.answer()
    thread_s = time.thread_time() - thread_s
    if tracer is not None:
        tracer.flush(30.0)
    process_s = time.process_time() - process_s
    return thread_s / NUM_MEASURED * 1e6, process_s / NUM_MEASURED * 1e6


def measure_cores(endpoint: str) -> list[dict[str, Any]]:
    os.environ[ENDPOINT] = endpoint
    os.environ["OTEL_BSP_MAX_QUEUE_SIZE"] = "100000"  # nothing may be dropped, or it looks cheap
    tracer = open_tracer(names.SERVICE_SCHEDULER, "bench")
    assert tracer is not None
    rows: list[dict[str, Any]] = []
    for size in SIZES:
        plain = [measure_core(size, None) for _ in range(3)]
        traced = [measure_core(size, tracer) for _ in range(3)]
        row = {
            "requests": size,
            "untraced_us": round(median(thread for thread, _ in plain)),
            "traced_us": round(median(thread for thread, _ in traced)),
            "traced_with_export_us": round(median(process for _, process in traced)),
        }
        rows.append(row)
        print(
            f"{size:>3} requests, executor of no time: {row['untraced_us']} µs of CPU a step, "
            f"traced {row['traced_us']}, with the thread that exports "
            f"{row['traced_with_export_us']}",
            flush=True,
        )
    tracer.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, help="model directory; default: the demo model")
    parser.add_argument("--streams", default="8,32", help="numbers of streams (default 8,32)")
    parser.add_argument("--rounds", type=int, default=5, help="of each, in turns (default 5)")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="segue-bench-model-") as directory, collector() as url:
        model = arguments.model or default_model(Path(directory))
        streams = [int(count) for count in arguments.streams.split(",")]
        serving = measure_serving(model, streams, arguments.rounds, url)
        report = {
            "model": model.name,
            "load_average_1min": round(os.getloadavg()[0], 2),
            "serving": serving,
            "core": measure_cores(url),
        }
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
