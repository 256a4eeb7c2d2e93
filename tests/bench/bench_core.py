"""What a step of the pure core costs: no service, no Redis, no protobuf, one Python thread.

`python tests/bench/bench_core.py [--json FILE]`, or `python -m tests.bench.bench_core`. The real
`EngineCore` with the `unified` policy as the service sets it up (overlapped, prefix caching, block
size 16), driven as `scheduler_svc/loop.py` does: the oldest result in, plan, take the commit. A
step's columns (`SchedulerOutput`) and the commit's delta are built, and not turned into bytes.

Decode: N requests with different 256-token prompts, admitted 8 a step, so that each step some of
them need a block. Admission: 8 such requests at once, planned, with their hashes and rows.
Everything is made before `gc.freeze()`; 64 steps warm up, 256 are measured. Times are CPU time of
this thread: on an idle machine that is what passes, on a busy one it leaves out the others' share.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from scheduler_svc.core.engine_core import EngineCore
from scheduler_svc.core.engine_state import EngineConfig
from scheduler_svc.core.events import (
    ExecutorConnected,
    ExecutorRegistered,
    ModelOutputReceived,
    RequestsSubmitted,
    Tick,
)
from scheduler_svc.core.scheduler_config import SchedulerConfig
from scheduler_svc.policies import load_policy
from segue.types import (
    Capacity,
    ModelRunnerOutput,
    SamplingParams,
    SchedulerOutput,
    Submission,
    TokenLogprobs,
)

SIZES = (8, 64, 256, 1024)
PROMPT_LEN = 256
BLOCK_SIZE = 16
NUM_ADMITTED = 8
NUM_WARMUP = 64
NUM_MEASURED = 256
NUM_ADMISSION_ROUNDS = 100
LANE = "e0"

# vLLM 0.32.0's V1 scheduler, schedule + update only (no delta, no plan built), on a machine on
# which the loop below takes REFERENCE_LOOP_US: docs/performance.md says how that was found.
VLLM_DECODE_US = {8: 93, 64: 533, 256: 2251, 1024: 11890}
VLLM_ADMISSION_US = 100
REFERENCE_LOOP_US = 94.0
COLUMNS = (
    ("running", "running"),
    ("sum", "us_per_step_p50"),
    ("schedule", "schedule_us_p50"),
    ("update", "update_us_p50"),
    ("delta", "delta_us_p50"),
    ("of vLLM", "of_vllm"),
    ("scaled", "of_vllm_scaled"),
)


class NoBytes:
    """A codec for a bench that leaves bytes out."""

    def encode_step(self, plan: SchedulerOutput) -> bytes:
        return b""

    def encode_submission(self, submission: Submission) -> bytes:
        return b""

    def encode_logprobs(self, logprobs: list[TokenLogprobs]) -> bytes:
        return b""

    def decode_step(self, body: bytes) -> SchedulerOutput:
        raise NotImplementedError

    def decode_submission(self, body: bytes) -> Submission:
        raise NotImplementedError

    def decode_logprobs(self, body: bytes) -> list[TokenLogprobs]:
        raise NotImplementedError


@dataclass(slots=True)
class StepTimes:
    """Microseconds of one step, or of one round of admissions."""

    update: float
    schedule: float
    delta: float

    @property
    def sum(self) -> float:
        return self.update + self.schedule + self.delta


class CoreDriver:
    """One core with one lane, and the executor that answers each step at once."""

    def __init__(
        self, num_requests: int, num_steps: int, *, is_async: bool, policy: str = "unified"
    ) -> None:
        blocks_each = -(-(PROMPT_LEN + num_steps) // BLOCK_SIZE) + 1
        num_blocks = num_requests * blocks_each + 1
        config = SchedulerConfig(
            block_size=BLOCK_SIZE,
            max_num_seqs=max(num_requests, NUM_ADMITTED),
            max_num_batched_tokens=NUM_ADMITTED * PROMPT_LEN + num_requests,
            max_model_len=8192,
            async_scheduling=is_async,
        )
        engine = EngineConfig(
            config, depth=2 if is_async else 1, max_queued_requests=10**6, finished_ttl_ms=0
        )
        self.core = EngineCore(engine, NoBytes(), load_policy(policy))
        self.core.lead(1, "bench", None)
        self.core.handle(ExecutorRegistered(LANE, "bench:1"))
        capacity = Capacity(num_blocks, BLOCK_SIZE)
        self.core.handle(ExecutorConnected(LANE, "i0", None, None, 1, capacity, 0))
        self.core.take_commit(0)
        self._random = random.Random(1)
        self._num_submitted = 0

    @property
    def planned(self) -> list[Any]:
        return self.core.state.lanes[LANE].planned

    def submissions(self, count: int, max_tokens: int) -> RequestsSubmitted:
        first = self._num_submitted
        self._num_submitted += count
        submissions = tuple(
            Submission(
                f"cmpl-{number:016x}-0",
                tuple(self._random.randrange(49152) for _ in range(PROMPT_LEN)),
                SamplingParams(seed=number, max_tokens=max_tokens, temperature=0.0),
                number,
            )
            for number in range(first, first + count)
        )
        return RequestsSubmitted("g0", submissions, (), 0)

    def result(self) -> ModelOutputReceived:
        """What the executor answers to the oldest step in flight."""
        plan: SchedulerOutput = self.planned[0].plan
        request_ids = list(plan.output_indices)
        result = ModelRunnerOutput(
            plan.step_id,
            plan.generation,
            request_ids,
            list(plan.output_indices.values()),
            [[self._random.randrange(49152)] for _ in request_ids],
        )
        return ModelOutputReceived(LANE, result, 1)

    def step(self, event: ModelOutputReceived | RequestsSubmitted) -> StepTimes:
        core = self.core
        started = time.thread_time_ns()
        core.handle(event)
        updated = time.thread_time_ns()
        core.plan((LANE,))
        planned = time.thread_time_ns()
        core.take_commit(1)
        ended = time.thread_time_ns()
        core.take_touched()
        return StepTimes(
            (updated - started) / 1e3, (planned - updated) / 1e3, (ended - planned) / 1e3
        )


def measure_decode(
    num_running: int, *, is_async: bool = True, policy: str = "unified"
) -> dict[str, Any]:
    """Steady decode of `num_running` requests."""
    num_admitting = -(-num_running // NUM_ADMITTED) + 4
    num_steps = num_admitting + NUM_WARMUP + NUM_MEASURED
    driver = CoreDriver(num_running, num_steps, is_async=is_async, policy=policy)
    driver.step(driver.submissions(num_running, max_tokens=10**6))
    for _ in range(num_admitting + NUM_WARMUP):
        driver.step(driver.result())
    assert len(driver.planned[0].plan.num_scheduled_tokens) == num_running
    times = _frozen(lambda: [driver.step(driver.result()) for _ in range(NUM_MEASURED)])
    sums = sorted(each.sum for each in times)
    return {
        "running": num_running,
        "us_per_step_p50": round(median(sums), 1),
        "us_per_step_p90": round(sums[len(sums) * 9 // 10], 1),
        "schedule_us_p50": round(median(each.schedule for each in times), 1),
        "update_us_p50": round(median(each.update for each in times), 1),
        "delta_us_p50": round(median(each.delta for each in times), 1),
        "schedule_update_us_p50": round(median(t.schedule + t.update for t in times), 1),
        "of_vllm": round(median(sums) / VLLM_DECODE_US[num_running], 3)
        if num_running in VLLM_DECODE_US
        else None,
    }


def measure_admission() -> dict[str, Any]:
    """New requests on an idle lane; each round's are gone before the next."""
    driver = CoreDriver(NUM_ADMITTED, 8, is_async=True)
    times: list[StepTimes] = []

    def admit_one_round() -> None:
        times.append(driver.step(driver.submissions(NUM_ADMITTED, max_tokens=1)))
        while driver.planned:
            driver.step(driver.result())
        driver.core.handle(Tick(10))
        driver.core.take_commit(1)

    for _ in range(NUM_ADMISSION_ROUNDS // 4):
        admit_one_round()
    times.clear()
    _frozen(lambda: [admit_one_round() for _ in range(NUM_ADMISSION_ROUNDS)])
    per_request = [each.sum / NUM_ADMITTED for each in times]
    return {
        "prompt_tokens": PROMPT_LEN,
        "requests_at_once": NUM_ADMITTED,
        "us_per_admission_p50": round(median(per_request), 1),
        "intake_us_p50": round(median(each.update for each in times) / NUM_ADMITTED, 1),
        "schedule_us_p50": round(median(each.schedule for each in times) / NUM_ADMITTED, 1),
        "delta_us_p50": round(median(each.delta for each in times) / NUM_ADMITTED, 1),
        "of_vllm": round(median(per_request) / VLLM_ADMISSION_US, 3),
    }


def reference_loop_us() -> float:
    """A loop of what a scheduler is made of: attributes, dictionaries, lists, small integers."""

    class Row:
        __slots__ = ("count", "name", "tokens")

        def __init__(self, name: str) -> None:
            self.name, self.count, self.tokens = name, 0, [0]

    rows = [Row(f"row-{i}") for i in range(1000)]

    def once() -> None:
        counts: dict[str, int] = {}
        chosen: list[Row] = []
        for row in rows:
            wanted = row.count + 2 - row.count
            if wanted > 0 and row.count % 16 != 17:
                counts[row.name] = wanted
                chosen.append(row)
        for row in chosen:
            row.count += counts[row.name]
            row.tokens[0] = row.count

    def timed() -> float:
        started = time.thread_time_ns()
        once()
        return (time.thread_time_ns() - started) / 1e3

    return median(timed() for _ in range(1000))


def _frozen(run: Callable[[], Any]) -> Any:
    """Run with what exists now out of the collector's sight, as the services do."""
    gc.collect()
    gc.freeze()
    try:
        return run()
    finally:
        gc.unfreeze()


def measure() -> dict[str, Any]:
    loop_before = reference_loop_us()
    decode = [measure_decode(size) for size in SIZES]
    synchronous = [measure_decode(256, is_async=False)]
    three_queue = [
        measure_decode(size, is_async=False, policy="three_queue") for size in SIZES[-2:]
    ]
    admission = [measure_admission()]
    loop_us = (loop_before + reference_loop_us()) / 2
    speed = REFERENCE_LOOP_US / loop_us
    for row in (*decode, *synchronous, *three_queue, *admission):
        row["of_vllm_scaled"] = round(row["of_vllm"] * speed, 3)
    for row, beside in zip(three_queue, decode[-len(three_queue) :], strict=True):
        row["of_unified"] = round(row["us_per_step_p50"] / beside["us_per_step_p50"], 2)
    return {
        "decode": decode,
        "decode_not_overlapped": synchronous,
        "decode_three_queue": three_queue,
        "admission": admission,
        "reference_loop_us": round(loop_us, 1),
        "reference_loop_us_recorded": REFERENCE_LOOP_US,
        "scale": round(speed, 3),
    }


def print_table(report: dict[str, Any]) -> None:
    print("decode, overlapped: p50 in µs per step, delta and columns built")
    print("".join(f"{title:>10}" for title, _ in COLUMNS))
    for row in report["decode"]:
        print("".join(f"{row[name]:>10}" for _, name in COLUMNS))
    (row,) = report["decode_not_overlapped"]
    print(f"not overlapped, {row['running']} running: {row['us_per_step_p50']} µs")
    for row in report["decode_three_queue"]:
        print(
            f"three_queue, {row['running']} running: {row['us_per_step_p50']} µs "
            f"(schedule {row['schedule_us_p50']}, update {row['update_us_p50']}, "
            f"delta {row['delta_us_p50']}), {row['of_unified']} of unified, overlapped"
        )
    (row,) = report["admission"]
    print(
        f"admission of a {row['prompt_tokens']}-token request: {row['us_per_admission_p50']} µs "
        f"(intake {row['intake_us_p50']}, schedule {row['schedule_us_p50']}, "
        f"delta {row['delta_us_p50']}); {row['of_vllm_scaled']} of vLLM, scaled"
    )
    print(
        f"reference loop: {report['reference_loop_us']} µs, recorded "
        f"{report['reference_loop_us_recorded']}: ratios scaled by {report['scale']}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    arguments = parser.parse_args()
    report = measure()
    print_table(report)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
