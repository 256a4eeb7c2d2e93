"""A load that shares prefixes: the prefix cache on and off, and the hit rate against the trace's.

`python -m tests.bench.bench_prefix [--model DIR] [--streams 16] [--requests 100] [--json FILE]`
Mooncake's trace, the conversations of eight and more turns (tests/bench/data/README.md), scaled so
that a block of the trace is a block of ours: lengths are a 32nd. A closed loop in the trace's
order. Two `segue serve`, with and without the cache, take it in turns, each time with nothing
cached. The trace's own rate is that of a cache which forgets nothing, over the same full blocks.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import uvloop

from segue.admin_client import AdminClient
from segue.bench.load import Target, run_closed_loop
from segue.bench.workload import (
    MOONCAKE_BLOCK_TOKENS,
    BenchRequest,
    PromptSource,
    TraceScale,
    read_trace,
)
from tests.bench.bench_serving import default_model, vocab_size
from tests.bench.served_counters import difference, parse_samples
from tests.served import Served

TRACE = Path(__file__).parent / "data" / "mooncake_conversation_turns.jsonl.gz"
BLOCK_SIZE = 16
SCALE = BLOCK_SIZE / MOONCAKE_BLOCK_TOKENS
SEED = 20_241_130
NUM_BLOCKS = 3072  # all that the trace has, so that nothing is dropped
TARGET_RATIO, TARGET_HIT_DIFFERENCE = 2.0, 0.01
MODES = {"off": "--no-enable-prefix-caching", "on": "--enable-prefix-caching"}


def trace_hit_rate(path: Path, limit: int, requests: Sequence[BenchRequest]) -> float:
    """Tokens of full blocks that an earlier request had as its prefix, over all; never the last."""
    seen: set[int] = set()
    num_hit = 0
    with gzip.open(path, "rt") as file:
        for line, request in zip(islice(file, limit), requests, strict=True):
            hash_ids: list[int] = json.loads(line)["hash_ids"]
            full = (len(request.prompt) - 1) // BLOCK_SIZE
            run = next((i for i, h in enumerate(hash_ids[:full]) if h not in seen), full)
            num_hit += min(run, full) * BLOCK_SIZE
            seen.update(hash_ids)
    return num_hit / sum(len(request.prompt) for request in requests)


def measure_once(
    served: Served, requests: Sequence[BenchRequest], streams: int
) -> tuple[float, float]:
    """Tokens/s, of prompts and outputs, and the share of the prompts' tokens that were cached."""
    admin = AdminClient(tuple(served.record()["schedulers"]))
    if not asyncio.run(admin.reset_prefix_cache(reset_running_requests=True)):
        raise RuntimeError("the prefix cache was not reset")
    before = parse_samples(served.metrics_page("scheduler-0"))
    started = time.perf_counter()
    result = uvloop.run(run_closed_loop(Target(served.url, served.model), requests, streams))
    seconds = time.perf_counter() - started
    if result.failures:
        raise RuntimeError(result.failures[0])
    counted = difference(parse_samples(served.metrics_page("scheduler-0")), before)
    num_tokens = sum(len(r.prompt) + r.max_tokens for r in requests)
    queries = counted.get("vllm:prefix_cache_queries_total", 0.0)
    hits = counted.get("vllm:prefix_cache_hits_total", 0.0)
    return num_tokens / seconds, hits / queries if queries else 0.0


def measure(model: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    source = PromptSource(SEED, range(min(1000, vocab_size(model) // 2), vocab_size(model)))
    requests = read_trace(TRACE, arguments.requests, TraceScale(length=SCALE), source)
    rates: dict[str, list[float]] = {mode: [] for mode in MODES}
    hit_rate = 0.0
    with tempfile.TemporaryDirectory(prefix="segue-bench-") as directory, ExitStack() as stack:
        served: dict[str, Served] = {}
        for mode, flag in MODES.items():
            flags = (flag, "--num-blocks", str(NUM_BLOCKS), *arguments.flags)
            served[mode] = Served(model, Path(directory) / mode, flags, environ={})
            stack.callback(served[mode].stop)
        for turn in range(arguments.rounds):
            for mode in sorted(MODES, reverse=bool(turn % 2)):
                rate, hits = measure_once(served[mode], requests, arguments.streams)
                rates[mode].append(rate)
                hit_rate = hits if mode == "on" else hit_rate
                print(f"  cache {mode}: {rate:.0f} tokens/s, {hits:.1%} cached", flush=True)
    return {
        "model": model.name,
        "requests": len(requests),
        "streams": arguments.streams,
        "tokens_per_s": {mode: round(median(values), 1) for mode, values in rates.items()},
        "ratio": round(median(rates["on"]) / median(rates["off"]), 2),
        "hit_rate": round(hit_rate, 4),
        "trace_hit_rate": round(trace_hit_rate(TRACE, arguments.requests, requests), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, help="model directory; default: the demo model")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=1, help="of each, in turns (default 1)")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    parser.add_argument("flags", nargs="*", help="flags of `segue serve`, behind --")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="segue-bench-model-") as directory:
        model = arguments.model or default_model(Path(directory))
        report = measure(model, arguments)
    print(
        f"{report['requests']} requests, {report['streams']} streams: ratio {report['ratio']} "
        f"(target {TARGET_RATIO}); hit rate {report['hit_rate']:.2%}, the trace's own "
        f"{report['trace_hit_rate']:.2%} (target: equal within {TARGET_HIT_DIFFERENCE:.0%})"
    )
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
