"""The line without a model: steps/s of the real scheduler, and what each process pays for a step.

`python -m tests.bench.bench_line [--streams 256] [--seconds 10] [--json FILE] [--profile FILE]`
Four processes, TCP and gRPC between them: redis-server (AOF, everysec), the scheduler as a user
starts it, the executor's service around a runner that takes no time, and a gateway that reads and
discards. A closed loop, prompts of 128 and outputs of 1,024 tokens. Steps/s by the clock are what
this machine had left; `alone` is 1 s over the scheduler's CPU for a step: with a core of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from segue.serve_plan import free_ports
from tests.bench.served_counters import Samples, cpu_seconds, difference, parse_samples
from tests.redis_process import RedisProcess, redis_binary, valkey_binary
from tests.served import stop_process

PARTS = ("schedule", "update", "commit", "encode", "emit")
STOP_TIMEOUT_S = 10.0
TARGET_STEPS_PER_S = 400


@contextmanager
def running(*command: str) -> Iterator[subprocess.Popen[str]]:
    """A process of ours, with pipes to it; it has ended when the block is left."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process
        finally:
            stop_process(process, STOP_TIMEOUT_S)


class Line:
    """Four processes that are up; `gateway` has all its requests running."""

    def __init__(self, stack: ExitStack, arguments: argparse.Namespace) -> None:
        redis_port, port, executor_port, self._metrics_port = free_ports(4)
        self.redis = _redis(redis_port)
        stack.callback(self.redis.stop)
        python = (sys.executable, "-m")
        profile = ("cProfile", "-o", str(arguments.profile), "-m") if arguments.profile else ()
        self.scheduler = stack.enter_context(
            running(
                *(*python, *profile, "scheduler_svc", "--listen", f"127.0.0.1:{port}"),
                *("--redis-url", f"redis://127.0.0.1:{redis_port}/0", "--no-has-peers"),
                *("--metrics-port", str(self._metrics_port)),
                *("--max-num-seqs", str(arguments.streams), *arguments.flags),
            )
        )
        self.executor = stack.enter_context(
            running(
                *(*python, "tests.bench.instant_executor"),
                *("--listen", f"127.0.0.1:{executor_port}", "--schedulers", f"127.0.0.1:{port}"),
            )
        )
        self.gateway = stack.enter_context(
            running(
                *(*python, "tests.bench.discarding_gateway", "--scheduler", f"127.0.0.1:{port}"),
                *("--streams", str(arguments.streams)),
                *("--output-tokens", str(arguments.output_tokens)),
            )
        )
        assert self.gateway.stdout is not None
        if self.gateway.stdout.readline() != "all run\n":
            raise RuntimeError("the gateway ended")

    def read(self) -> tuple[float, Samples, dict[str, float]]:
        """The time, the scheduler's counters, and CPU seconds of each process."""
        url = f"http://127.0.0.1:{self._metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=10) as response:
            samples = parse_samples(response.read().decode())
        processes = {
            "scheduler": self.scheduler.pid,
            "executor": self.executor.pid,
            "gateway": self.gateway.pid,
            "redis": self.redis.pid,
        }
        cpu_s = {name: cpu_seconds(pid) for name, pid in processes.items()}
        return time.perf_counter(), samples, cpu_s


def _redis(port: int) -> RedisProcess:
    binary = redis_binary() or valkey_binary()
    if binary is None:
        raise SystemExit("no redis-server and no valkey-server here")
    options = ("--port", str(port), "--bind", "127.0.0.1", "--appendonly", "yes", "--save", "")
    return RedisProcess(binary, *options).start()


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    with ExitStack() as stack:
        line = Line(stack, arguments)
        time.sleep(arguments.warm_up)
        began, samples, cpu_before = line.read()
        time.sleep(arguments.seconds)
        ended, later, cpu_after = line.read()
    counted, cpu_s = difference(later, samples), difference(cpu_after, cpu_before)
    num_steps, num_tokens = counted["segue:steps_total"], counted["segue:tokens_emitted_total"]
    parts = {part: counted[f"segue:{part}_seconds_total"] / num_steps * 1e6 for part in PARTS}
    return {
        "streams": arguments.streams,
        "seconds": round(ended - began, 2),
        "steps": round(num_steps),
        "tokens_per_step": round(num_tokens / num_steps, 1),
        "steps_per_s": round(num_steps / (ended - began), 1),
        "steps_per_s_alone": round(num_steps / cpu_s["scheduler"], 1),
        "tokens_per_s": round(num_tokens / (ended - began)),
        "scheduler_us_per_step": {name: round(us) for name, us in parts.items()},
        "cpu_us_per_step": {n: round(s / num_steps * 1e6) for n, s in cpu_s.items()},
        "cpu_us_per_token": {n: round(s / num_tokens * 1e6, 2) for n, s in cpu_s.items()},
        "wire_bytes_per_step": round(counted["segue:wire_bytes_total"] / num_steps),
    }


def print_report(report: dict[str, Any]) -> None:
    print(
        f"{report['streams']} streams, an executor that takes no time: {report['steps']} steps of "
        f"{report['tokens_per_step']} tokens in {report['seconds']} s\n"
        f"  steps/s    {report['steps_per_s']} by the clock, {report['steps_per_s_alone']} alone "
        f"(target {TARGET_STEPS_PER_S})\n"
        f"  tokens/s   {report['tokens_per_s']}\n"
        f"  wire       {report['wire_bytes_per_step']} bytes a step (step, result, output)"
    )
    parts = "  ".join(f"{name} {us}" for name, us in report["scheduler_us_per_step"].items())
    print(f"  the scheduler's CPU in µs a step, by its own clock: {parts}")
    print(f"  {'CPU of the process':20}{'µs a step':>12}{'µs a token':>12}")
    for name, us in report["cpu_us_per_step"].items():
        print(f"  {name:20}{us:>12}{report['cpu_us_per_token'][name]:>12}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--output-tokens", type=int, default=1024)
    parser.add_argument("--warm-up", type=float, default=5.0, help="seconds before it is measured")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    parser.add_argument("--profile", type=Path, help="cProfile of the scheduler; it slows it down")
    parser.add_argument("flags", nargs="*", help="flags of the scheduler, behind --")
    arguments = parser.parse_args()
    report = measure(arguments)
    print_report(report)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
