"""The scheduler's policy and the executor's runner in one thread: the line without its borders.

Knows no gateway, Redis, gRPC or second process; nothing is encoded. Invariant: steps are planned
and run in the order, and with the two in flight, that the services have, so a text is the same.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from executor_svc.model_loader import LoadOptions, load_model_runner
from scheduler_svc.config import SchedulerServiceConfig
from scheduler_svc.core.journal import Journal
from scheduler_svc.core.request import Request
from scheduler_svc.core.unified.scheduler import UnifiedScheduler
from segue.bench.workload import BenchRequest
from segue.types import Generation, SamplingParams, SchedulerOutput, StepKey, Submission

LANE_ID = "e0"
GENERATION = Generation(1, 1)
DEPTH = 2


class InProcessLine:
    """With the defaults of the services."""

    def __init__(self, model: Path, num_threads: int = 0) -> None:
        self._runner = load_model_runner(
            model, LoadOptions(num_threads=num_threads, populates_cache=True)
        )
        self._requests: dict[str, Request] = {}
        config = SchedulerServiceConfig().engine_config().scheduler
        self._config = config.for_capacity(self._runner.capacity)
        self._journal = Journal()
        self._scheduler = UnifiedScheduler(LANE_ID, self._config, self._requests, self._journal)
        self._num_submitted = 0
        self._num_steps = 0
        self._waiting: deque[BenchRequest] = deque()
        gc.collect()
        gc.freeze()  # as each service does

    def run(self, requests: Iterable[BenchRequest], num_streams: int) -> float:
        """Seconds that it took to answer them all, so many at a time."""
        started = time.perf_counter()
        self._waiting = deque(requests)
        for _ in range(num_streams):
            self._submit_next()
        planned: deque[SchedulerOutput] = deque()
        while True:
            while len(planned) < DEPTH and self._scheduler.has_work():
                plan = self._plan()
                if not (plan.num_scheduled_tokens or plan.finished_req_ids):
                    break
                planned.append(plan)
            if not planned:
                return time.perf_counter() - started
            plan = planned.popleft()
            result = self._runner.execute(plan)
            outputs = self._scheduler.update_from_output(plan, result, 0)
            self._journal.clear()
            for request_id, finish in outputs.items():
                if finish is not None:
                    del self._requests[request_id]
                    self._submit_next()

    def _plan(self) -> SchedulerOutput:
        self._num_steps += 1
        return self._scheduler.schedule(StepKey(self._num_steps, 1), GENERATION)

    def _submit_next(self) -> None:
        if not self._waiting:
            return
        asked = self._waiting.popleft()
        number = self._num_submitted
        self._num_submitted += 1
        params = SamplingParams(seed=number, max_tokens=asked.max_tokens, temperature=0.0)
        submission = Submission(f"cmpl-{number:032x}-0", asked.prompt, params, number)
        request = Request(submission, block_size=self._config.block_size)
        request.lane_id = LANE_ID
        self._requests[submission.request_id] = request
        self._scheduler.add_request(request)
