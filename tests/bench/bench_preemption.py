"""Three ways to run out of blocks, for real: `unified`, and `three_queue` with recompute and swap.

`python -m tests.bench.bench_preemption [--model DIR] [--streams 8]`. Starts `segue serve` with each
in turn, with blocks for half of the load, and sends the same load; the counts are the services' own
(/metrics). Knows nothing about what a policy decides. Invariant: each answer came in full, so
nothing was lost on the way.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import uvloop

from tests.bench.bench_serving import SEED, default_model, vocab_size
from tests.bench.closed_loop import Load, percentile, run_closed_loop
from tests.bench.served_counters import Counters
from tests.served import Served

BLOCK_SIZE = 16
V0 = ("--policy", "three_queue", "--preemption-mode")
POLICIES: dict[str, tuple[str, ...]] = {
    "unified": ("--policy", "unified"),
    "three_queue recompute": (*V0, "recompute"),
    "three_queue swap": (*V0, "swap"),
}
COLUMNS = ("tok/s", "ttft p99", "steps", "preempted", "recomputed")


@dataclass(slots=True, frozen=True)
class Memory:
    """Blocks for half of the load at its end, and CPU blocks for all of it."""

    num_blocks: int
    num_cpu_blocks: int

    @classmethod
    def for_half(cls, load: Load) -> Memory:
        each = -(-(load.prompt_tokens + load.output_tokens) // BLOCK_SIZE)
        return cls(each * load.num_streams // 2, each * load.num_streams)

    def flags(self) -> tuple[str, ...]:
        return (
            *("--num-blocks", str(self.num_blocks), "--num-cpu-blocks", str(self.num_cpu_blocks)),
            *("--block-size", str(BLOCK_SIZE)),
        )


def measure(model: Path, num_streams: int, flags: tuple[str, ...]) -> tuple[object, ...]:
    with tempfile.TemporaryDirectory(prefix="segue-bench-") as directory:
        load = Load("", vocab_size(model), num_streams, 1, prompt_tokens=64, output_tokens=96)
        flags = (*flags, *Memory.for_half(load).flags())
        served = Served(model, Path(directory) / "state", flags, environ={})
        try:
            load = replace(load, model=served.model)
            before = Counters.read(served)
            result = uvloop.run(run_closed_loop(served.url, load, SEED))
            counts = Counters.read(served).scheduler_since(before)
        finally:
            served.stop()
    return (
        f"{result.tokens_per_s:.1f}",
        f"{percentile(result.ttft_s, 0.99) * 1e3:.0f} ms",
        round(counts["segue:steps_total"]),
        round(counts["vllm:num_preemptions_total"]),
        round(counts["segue:tokens_recomputed_total"]),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, help="model directory; default: the demo model")
    parser.add_argument("--streams", type=int, default=8, help="requests at a time (default 8)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="segue-bench-model-") as directory:
        model = arguments.model or default_model(Path(directory))
        print(f"{model.name}, {arguments.streams} requests of 64 + 96 tokens at once")
        print(f"{'':24}" + "".join(f"{title:>12}" for title in COLUMNS))
        for name, flags in POLICIES.items():
            cells = measure(model, arguments.streams, flags)
            print(f"{name:24}" + "".join(f"{cell!s:>12}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
