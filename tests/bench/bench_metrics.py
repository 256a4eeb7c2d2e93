"""What counting costs: a step of the scheduler, and a message's tokens at the gateway.

`python -m tests.bench.bench_metrics [--json FILE]`. The scheduler: bench_core's driver, with what
`EngineLoop._step` counts timed beside the core's own step. The gateway: the real ledger with the
hand model's tokenizer takes one token of each of N streams, with the metrics and without. Times are
CPU of this thread, p50; the share is of the same run.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from gateway_svc.call import Call, CallKind, CallShape, request_id_of
from gateway_svc.choice import Choice
from gateway_svc.ledger import Ledger, LedgerObserver
from gateway_svc.live_call import LiveCall
from gateway_svc.metrics import GatewayMetrics
from gateway_svc.tokenizer import Tokenizer
from scheduler_svc.step_meters import StepMeters
from segue.instruments import Service
from segue.meters import Meters
from segue.model_files.hand import VOCAB_SIZE, write_hand_model
from segue.types import OutputColumns, RequestOutput, SamplingParams, Submission
from tests.bench.bench_core import NUM_ADMITTED, NUM_WARMUP, CoreDriver

SIZES = (8, 64, 256)
NUM_MEASURED = 200
TURN_S = (1e-4, 1e-4, 1e-3, 1e-4)


class CountsNothing:
    """A ledger's observer, for the run to compare with."""

    def call_added(self, live: LiveCall) -> None: ...
    def batch_began(self) -> None: ...
    def rows_received(self, choice: Choice, num_rows: int, num_repeated: int) -> None: ...
    def batch_ended(self) -> None: ...
    def choice_ended(self, choice: Choice) -> None: ...
    def choice_lost(self, choice: Choice) -> None: ...


def measure_scheduler(num_running: int) -> dict[str, Any]:
    num_admitting = -(-num_running // NUM_ADMITTED) + 4
    driver = CoreDriver(num_running, num_admitting + NUM_WARMUP + NUM_MEASURED, is_async=True)
    meters = StepMeters(Meters(Service.SCHEDULER, {"model_name": "m"}), has_prefix_cache=True)

    def count() -> float:
        started = time.thread_time_ns()
        meters.note_commit(driver.core)
        meters.note_turn(*TURN_S)
        return (time.thread_time_ns() - started) / 1e3

    driver.step(driver.submissions(num_running, max_tokens=10**6))
    count()
    for _ in range(num_admitting + NUM_WARMUP):
        driver.step(driver.result())
        count()
    times = [(driver.step(driver.result()).sum, count()) for _ in range(NUM_MEASURED)]
    step_us, count_us = median(step for step, _ in times), median(count for _, count in times)
    return _row("scheduler", num_running, count_us, step_us)


def measure_gateway(num_streams: int, tokenizer: Tokenizer) -> dict[str, Any]:
    without = _receive_us(num_streams, tokenizer, CountsNothing())
    with_metrics = _receive_us(num_streams, tokenizer, GatewayMetrics("m"))
    return _row("gateway", num_streams, with_metrics - without, without)


def _receive_us(num_streams: int, tokenizer: Tokenizer, observer: LedgerObserver) -> float:
    ledger = Ledger(tokenizer, observer)
    shape = CallShape(CallKind.COMPLETION, "m", 0, 1)
    params = SamplingParams(seed=0, max_tokens=10**6)
    arrival_unix_ms = time.time_ns() // 1_000_000
    ids = [request_id_of(f"cmpl-{i:016x}", 0) for i in range(num_streams)]
    for request_id in ids:
        call_id = request_id.rpartition("-")[0]
        submission = Submission(request_id, (1, 2), params, arrival_unix_ms, group_id=call_id)
        ledger.add(LiveCall.new(Call(call_id, shape, (submission,)), tokenizer))

    def receive(index: int) -> float:
        outputs = OutputColumns.of(RequestOutput(request_id, index, (65,)) for request_id in ids)
        started = time.thread_time_ns()
        ledger.receive(outputs)
        return (time.thread_time_ns() - started) / 1e3

    return median([receive(index) for index in range(NUM_MEASURED)])


def _row(service: str, num_streams: int, count_us: float, work_us: float) -> dict[str, Any]:
    return {
        "service": service,
        "streams": num_streams,
        "count_us": round(count_us, 1),
        "work_us": round(work_us, 1),
        "share": round(count_us / work_us, 4),
    }


def measure() -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as directory:
        model = write_hand_model(Path(directory) / "hand")
        tokenizer = Tokenizer(model / "tokenizer.json", VOCAB_SIZE)
        rows = [measure_gateway(size, tokenizer) for size in SIZES]
    return [*(measure_scheduler(size) for size in SIZES), *rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    arguments = parser.parse_args()
    rows = measure()
    print(
        "counting, p50 in µs of CPU for each step (scheduler: of the core's; gateway: of receiving)"
    )
    for row in rows:
        print(
            f"{row['service']:>10}{row['streams']:>5} streams: {row['count_us']:>7} beside "
            f"{row['work_us']:>8} ({row['share']:.1%})"
        )
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
