"""The one thread that computes: a step's plan goes in, its result comes out, timed.

Knows nothing about streams or which step comes next. Invariant: one step at a time, so the runner
needs no lock; the event loop stays free, so signs of life go out during a step of any length.
The thread asks by itself what comes next: a wake-up of the event loop and back is a millisecond on
a busy machine, and compute would wait for it after each step.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol

from segue.types import Capacity, ModelRunnerOutput, SchedulerOutput, StepTimings

log = logging.getLogger("segue.executor")


class Runner(Protocol):
    """What the service needs of `ModelRunner`."""

    @property
    def capacity(self) -> Capacity: ...
    @property
    def num_positions_computed(self) -> int: ...
    @property
    def num_positions_recomputed(self) -> int: ...
    @property
    def num_draft_tokens(self) -> int: ...
    @property
    def num_accepted_draft_tokens(self) -> int: ...
    def reset(self) -> None: ...
    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput: ...


@dataclass(slots=True, frozen=True)
class AcceptedStep:
    """`accepted_ns`: when it came, by time.monotonic_ns(). `must_reset`: forget all before it."""

    plan: SchedulerOutput
    accepted_ns: int
    must_reset: bool


Settle = Callable[[SchedulerOutput, ModelRunnerOutput | Exception], AcceptedStep | None]
"""Takes a step and its result or what it raised, on the worker's thread; gives the next step."""


def _ignore_step(busy_us: int, timings: StepTimings) -> None:
    """Nobody counts."""


def _start_at_once() -> None:
    """Nobody holds steps back."""


class StepObserver(Protocol):
    """Hears of each step once its result has gone out. Times: time.monotonic_ns()."""

    def step_ended(
        self,
        plan: SchedulerOutput,
        outcome: ModelRunnerOutput | Exception,
        started_ns: int,
        ended_ns: int,
    ) -> None: ...


class StepWorker:
    def __init__(
        self,
        runner: Runner,
        before_step: Callable[[], None] = _start_at_once,
        observer: StepObserver | None = None,
    ) -> None:
        self.num_steps = 0
        self.idle_us = 0
        self.busy_us = 0
        self.on_step: Callable[[int, StepTimings], None] = _ignore_step
        self._runner = runner
        self._before_step = before_step
        self._observer = observer
        self._last_start_ns = 0
        self._last_end_ns = 0
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="step")

    def start(self, step: AcceptedStep, settle: Settle) -> None:
        """Run it, and what `settle` gives each time a step ends; for when no step runs."""
        self._thread.submit(self._run_all, step, settle)

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

    def _run_all(self, first: AcceptedStep, settle: Settle) -> None:
        step: AcceptedStep | None = first
        while step is not None:
            try:
                outcome = self._run(step)
            except Exception as error:  # whatever it is, it ends this generation and no other
                log.exception("step %d failed", step.plan.step_id)
                outcome = error
            plan = step.plan
            step = settle(plan, outcome)
            if self._observer is not None:
                self._observer.step_ended(plan, outcome, self._last_start_ns, self._last_end_ns)

    def _run(self, step: AcceptedStep) -> ModelRunnerOutput:
        self._last_start_ns = started_ns = time.monotonic_ns()
        idle_us = (started_ns - self._could_run_since_ns(step.plan, step.accepted_ns)) // 1000
        try:
            self._before_step()
            if step.must_reset:
                self._runner.reset()
            result = self._runner.execute(step.plan)
        finally:
            self._last_end_ns = time.monotonic_ns()
        self.num_steps += 1
        self.idle_us += idle_us
        busy_us = (self._last_end_ns - started_ns) // 1000
        self.busy_us += busy_us
        self.on_step(busy_us, result.timings)
        return replace(result, timings=replace(result.timings, idle_us=idle_us))
