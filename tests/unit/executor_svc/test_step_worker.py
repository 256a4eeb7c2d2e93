"""The worker's thread goes from step to step by itself, and counts what it did not compute."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from executor_svc.step_worker import AcceptedStep, StepWorker
from segue.types import (
    CachedRequestData,
    Capacity,
    Generation,
    ModelRunnerOutput,
    NewRequestData,
    SamplingParams,
    SchedulerOutput,
)

GENERATION = Generation(1, 1)
ONE_SECOND_NS = 1_000_000_000
NEW_REQUEST = NewRequestData("r", (1, 2), 2, 0, (1,), SamplingParams(seed=1, max_tokens=1))


class RecordingRunner:
    """Raises for the step ids in `broken`."""

    def __init__(self) -> None:
        self.step_ids: list[int] = []
        self.threads: set[int] = set()
        self.num_resets = 0
        self.broken: set[int] = set()
        self.capacity = Capacity(8, 16)
        self.num_positions_computed = 0
        self.num_positions_recomputed = 0
        self.num_draft_tokens = 0
        self.num_accepted_draft_tokens = 0

    def reset(self) -> None:
        self.num_resets += 1

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        self.step_ids.append(plan.step_id)
        self.threads.add(threading.get_ident())
        if plan.step_id in self.broken:
            raise ValueError("this step is broken")
        return ModelRunnerOutput(plan.step_id, plan.generation)


class Settler:
    """Gives the steps that were prepared, one after the other; `done` when there is none left."""

    def __init__(self, *prepared: AcceptedStep) -> None:
        self.prepared = list(prepared)
        self.outcomes: list[ModelRunnerOutput | Exception] = []
        self.done = threading.Event()

    def settle(
        self, plan: SchedulerOutput, outcome: ModelRunnerOutput | Exception
    ) -> AcceptedStep | None:
        self.outcomes.append(outcome)
        if self.prepared:
            return self.prepared.pop(0)
        self.done.set()
        return None


@pytest.fixture
def runner() -> RecordingRunner:
    return RecordingRunner()


@pytest.fixture
def worker(runner: RecordingRunner) -> Iterator[StepWorker]:
    worker = StepWorker(runner)
    yield worker
    worker.close()


def decode(step_id: int, *, must_reset: bool = False) -> AcceptedStep:
    cached = CachedRequestData(["r"], [()], [2])
    plan = SchedulerOutput(step_id, 1, GENERATION, scheduled_cached_reqs=cached)
    return AcceptedStep(plan, time.monotonic_ns(), must_reset)


def prefill(step_id: int, accepted_ns: int) -> AcceptedStep:
    plan = SchedulerOutput(step_id, 1, GENERATION, scheduled_new_reqs=[NEW_REQUEST])
    return AcceptedStep(plan, accepted_ns, must_reset=False)


def run(worker: StepWorker, first: AcceptedStep, settler: Settler) -> None:
    worker.start(first, settler.settle)
    assert settler.done.wait(5)


def test_a_prepared_step_needs_no_event_loop(worker: StepWorker, runner: RecordingRunner) -> None:
    """There is none here: a busy one would let compute wait."""
    settler = Settler(decode(2), decode(3))
    run(worker, decode(1), settler)
    assert runner.step_ids == [1, 2, 3]
    assert len(runner.threads) == 1
    assert worker.num_steps == 3


def test_a_step_that_raises_is_settled_with_what_it_raised(
    worker: StepWorker, runner: RecordingRunner
) -> None:
    runner.broken = {1}
    settler = Settler(decode(2))
    run(worker, decode(1), settler)
    assert isinstance(settler.outcomes[0], ValueError)
    assert isinstance(settler.outcomes[1], ModelRunnerOutput)
    assert worker.num_steps == 1


def test_a_generation_begins_with_a_reset(worker: StepWorker, runner: RecordingRunner) -> None:
    run(worker, decode(1, must_reset=True), Settler(decode(2)))
    assert runner.num_resets == 1


def test_a_step_of_new_requests_is_waited_for_since_it_came(worker: StepWorker) -> None:
    run(worker, prefill(1, time.monotonic_ns() - ONE_SECOND_NS), Settler())
    assert 1_000_000 <= worker.idle_us < 60_000_000


def test_a_request_that_was_here_could_have_run_all_the_time(worker: StepWorker) -> None:
    """Though its step came late: that is just what an idle executor waits for."""
    run(worker, prefill(1, time.monotonic_ns()), Settler())
    idle_before_us, ended_ns = worker.idle_us, time.monotonic_ns()
    late = decode(2)
    run(worker, late, Settler())
    assert worker.idle_us - idle_before_us >= (late.accepted_ns - ended_ns) // 1000


def test_time_within_steps_is_busy(runner: RecordingRunner) -> None:
    worker = StepWorker(runner, lambda: time.sleep(0.002))
    run(worker, decode(1), Settler(decode(2)))
    worker.close()
    assert worker.busy_us >= 4000
