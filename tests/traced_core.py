"""The core with its tracer, driven as the loop drives it, one commit at a time.

Knows the loop's order and an executor that samples 100, 101, 102, …; no stream and no store.
Invariant: `rows` are what a store would hold, so a successor is made from nothing else.
"""

from __future__ import annotations

import time

from scheduler_svc.core.engine_core import EngineCore
from scheduler_svc.core.engine_state import EngineConfig
from scheduler_svc.core.events import (
    Event,
    ExecutorConnected,
    ExecutorRegistered,
    ModelOutputReceived,
    Reply,
    RequestsSubmitted,
)
from scheduler_svc.core.reconfiguration import Configuration
from scheduler_svc.core.rows import CommitId, Rows
from scheduler_svc.core.scheduler_config import SchedulerConfig
from scheduler_svc.core.three_queue.config import ThreeQueueConfig
from scheduler_svc.loop_observer import LoopObserver
from scheduler_svc.policies import load_policy
from scheduler_svc.tracing.loop_tracer import LoopTracer
from scheduler_svc.tracing.step_spans import StepTracing
from segue.tracing.trace_context import TraceContext
from segue.tracing.tracer import Tracer
from segue.types import (
    Capacity,
    ModelRunnerOutput,
    SamplingParams,
    SchedulerOutput,
    StepKey,
    Submission,
)
from segue.wire import WireCodec

LANE = "e0"
ALL_STEPS = StepTracing("unified", ratio=1.0, slow_step_ns=3_600_000_000_000)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def submission(
    request_id: str, num_prompt: int = 8, max_tokens: int = 4, traceparent: str | None = None
) -> Submission:
    """Under a gateway's span of its own, where nothing else is said."""
    if traceparent is None:
        number = int.from_bytes(request_id.encode())
        traceparent = TraceContext(number, number & (2**64 - 1)).traceparent()
    params = SamplingParams(seed=0, max_tokens=max_tokens)
    first = int.from_bytes(request_id.encode()) % 1_000_003 * 1000  # no two prompts begin alike
    prompt = tuple(range(first, first + num_prompt))
    return Submission(request_id, prompt, params, now_ms(), traceparent=traceparent)


class TracedCore:
    """One leader's life. `depth` steps are in flight before the first is answered."""

    def __init__(
        self,
        tracer: Tracer | None,
        scheduler: SchedulerConfig,
        tracing: StepTracing = ALL_STEPS,
        *,
        predecessor: TracedCore | None = None,
        capacity: Capacity | None = None,
        configuration: Configuration | None = None,
    ) -> None:
        is_v0 = isinstance(scheduler, ThreeQueueConfig)
        policy = load_policy("three_queue" if is_v0 else "unified")
        depth = 1 if is_v0 or not scheduler.async_scheduling else 2
        config = EngineConfig(scheduler, depth=depth, max_queued_requests=1000)
        self.core = EngineCore(config, WireCodec(), policy, configuration)
        self.epoch = 1
        self.rows = Rows()
        last_commit: CommitId | None = None
        if predecessor is not None:
            self.rows = predecessor.rows
            self.core.restore(self.rows)
            self.epoch, last_commit = predecessor.epoch + 1, predecessor.last_commit
        self.core.lead(self.epoch, f"leader-{self.epoch}", last_commit)
        self.last_commit = last_commit
        self.observer = (
            LoopObserver(self.core) if tracer is None else LoopTracer(self.core, tracer, tracing)
        )
        self.observer.begin()
        self._capacity = capacity or Capacity(1000, scheduler.block_size)
        self._num_incarnations = 1

    def commit(self, *events: Event) -> list[Reply]:
        """What the loop does with a batch of events."""
        replies = [reply for event in events for reply in self.observer.handle(event)]
        ready = [lane.executor_id for lane in self.core.state.lanes.values() if lane.is_open]
        self.observer.plan(ready)
        self.observer.commit_begins()
        commit = self.core.take_commit(now_ms())
        self.rows.apply(commit.delta)
        self.last_commit = commit.id
        self.observer.committed()
        self.observer.sent()
        self.core.take_touched()
        return replies

    def connect(self) -> list[Reply]:
        """A new process of the executor."""
        self._num_incarnations += 1
        connected = ExecutorConnected(
            LANE, f"i{self._num_incarnations}", None, None, 0, self._capacity, now_ms()
        )
        return self.commit(ExecutorRegistered(LANE, "nowhere"), connected)

    def submit(self, *submissions: Submission) -> list[Reply]:
        return self.commit(RequestsSubmitted("g0", submissions, (), now_ms()))

    def in_flight(self) -> list[SchedulerOutput]:
        return [step.plan for step in self.core.state.lanes[LANE].planned]

    def answer(self, plan: SchedulerOutput | None = None) -> SchedulerOutput:
        """The executor's answer to the oldest step in flight; returns that step."""
        plan = plan or self.in_flight()[0]
        indices = plan.output_indices
        result = ModelRunnerOutput(
            plan.step_id,
            plan.generation,
            list(indices),
            list(indices.values()),
            [[100 + index] for index in indices.values()],
        )
        self.commit(ModelOutputReceived(LANE, result, now_ms()))
        return plan

    def finish_all(self) -> list[StepKey]:
        """Answers until nothing is in flight; the steps that were answered."""
        answered: list[StepKey] = []
        while self.in_flight():
            answered.append(self.answer().key)
        return answered
