"""The one thread that computes: a step's plan goes in, its result comes out, timed.

Knows nothing about streams or which step comes next. Invariant: one step at a time, so the runner
needs no lock; the event loop stays free, so signs of life go out during a step of any length.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Protocol

from segue.types import Capacity, ModelRunnerOutput, SchedulerOutput


class Runner(Protocol):
    """What the service needs of `ModelRunner`."""

    @property
    def capacity(self) -> Capacity: ...
    @property
    def num_positions_computed(self) -> int: ...
    @property
    def num_positions_recomputed(self) -> int: ...
    def reset(self) -> None: ...
    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput: ...


class StepWorker:
    def __init__(self, runner: Runner, step_delay_s: float = 0.0) -> None:
        self.num_steps = 0
        self.idle_us = 0
        self.busy_us = 0
        self._runner = runner
        self._step_delay_s = step_delay_s
        self._last_end_ns = 0
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="step")

    async def run(
        self, plan: SchedulerOutput, accepted_ns: int, *, must_reset: bool
    ) -> ModelRunnerOutput:
        """Raises what the step raised. `accepted_ns`: when it came, by time.monotonic_ns()."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._run, plan, accepted_ns, must_reset)

    def close(self) -> None:
        """Does not wait for a step that runs."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _could_run_since_ns(self, plan: SchedulerOutput, accepted_ns: int) -> int:
        """Since when compute waits for this step.

        A request that was here before could have run since the last step ended, so the whole gap is
        idle, whoever is slow. A step of new requests only could not run before it came.
        """
        if plan.scheduled_cached_reqs.request_ids:
            return self._last_end_ns
        return max(self._last_end_ns, accepted_ns)

    def _run(self, plan: SchedulerOutput, accepted_ns: int, must_reset: bool) -> ModelRunnerOutput:
        started_ns = time.monotonic_ns()
        idle_us = (started_ns - self._could_run_since_ns(plan, accepted_ns)) // 1000
        try:
            if self._step_delay_s:
                time.sleep(self._step_delay_s)
            if must_reset:
                self._runner.reset()
            result = self._runner.execute(plan)
        finally:
            self._last_end_ns = time.monotonic_ns()
        self.num_steps += 1
        self.idle_us += idle_us
        self.busy_us += (self._last_end_ns - started_ns) // 1000
        return replace(result, timings=replace(result.timings, idle_us=idle_us))
