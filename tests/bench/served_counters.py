"""What the services of a running `segue serve` have counted, at one moment; and differences of it.

Knows /metrics, /proc and Redis' INFO; starts nothing. Invariant: a figure is the difference of two
readings, so what was before the first does not matter.
"""

from __future__ import annotations

import math
import os
import re
import urllib.request
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from tests.served import Served

SAMPLE = re.compile(r"(?P<name>[^{\s]+)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)$")
BOUND = re.compile(r'le="([^"]+)"')
Samples = dict[str, float]


def parse_samples(text: str) -> Samples:
    """By name, labels summed; a bucket of a histogram keeps its bound: `name_bucket|0.5`."""
    samples: defaultdict[str, float] = defaultdict(float)
    for line in text.splitlines():
        match = SAMPLE.match(line)
        if match is None or line.startswith("#"):
            continue
        name = match["name"]
        bound = BOUND.search(match["labels"] or "")
        if bound is not None:
            name = f"{name}|{float(bound[1])}"
        samples[name] += float(match["value"])
    return dict(samples)


def difference(later: Samples, earlier: Samples) -> Samples:
    return {name: value - earlier.get(name, 0.0) for name, value in later.items()}


def histogram_quantile(samples: Samples, name: str, share: float) -> float:
    """As Prometheus has it: linear within the bucket; the last finite bound for what is above."""
    prefix = f"{name}_bucket|"
    buckets = sorted(
        (float(key.removeprefix(prefix)), count)
        for key, count in samples.items()
        if key.startswith(prefix)
    )
    assert buckets
    if not buckets[-1][1]:
        return 0.0
    wanted = buckets[-1][1] * share
    lower, below = 0.0, 0.0
    for bound, count in buckets:
        if count >= wanted and count > below:
            if math.isinf(bound):
                return lower
            return lower + (bound - lower) * (wanted - below) / (count - below)
        lower, below = bound, count
    return lower


@dataclass(slots=True, frozen=True)
class Counters:
    scheduler: Samples
    executor: Samples
    cpu_s: dict[str, float]  # by process; empty where there is no /proc
    aof_bytes: int

    @classmethod
    def read(cls, served: Served) -> Counters:
        processes = ("gateway-0", "scheduler-0", "executor-0", "redis")
        return cls(
            parse_samples(_scrape(served, "scheduler-0")),
            parse_samples(_scrape(served, "executor-0")),
            {name: cpu for name in processes if (cpu := cpu_seconds(served.pid(name)))},
            int(served.redis("INFO", "persistence").get("aof_current_size", 0)),
        )

    def scheduler_since(self, earlier: Counters) -> Samples:
        return difference(self.scheduler, earlier.scheduler)

    def executor_since(self, earlier: Counters) -> Samples:
        return difference(self.executor, earlier.executor)

    def cpu_since(self, earlier: Counters) -> dict[str, float]:
        return difference(self.cpu_s, earlier.cpu_s)


def _scrape(served: Served, name: str) -> str:
    with urllib.request.urlopen(served.metrics_url(name), timeout=5) as response:
        return response.read().decode()


def cpu_seconds(pid: int) -> float:
    """Of all its threads, user and system."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    user, system = stat.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
