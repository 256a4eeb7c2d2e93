"""Watches the loop, and tells spans of what it sees.

Knows the loop's calls on the core and what they mean for spans; knows neither the wire nor the
store. Invariant: it does what `LoopObserver` does; what it adds is cheap, and after the core.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from scheduler_svc.config import SchedulerServiceConfig
from scheduler_svc.core.engine_core import EngineCore
from scheduler_svc.core.events import (
    Event,
    ExecutorConnected,
    GenerationEnded,
    LaneDrained,
    ModelOutputReceived,
    PrefixCacheReset,
    Rejected,
    Reply,
    RequestsAttached,
    RequestsSubmitted,
    SessionOpened,
)
from scheduler_svc.loop_observer import LoopObserver
from scheduler_svc.tracing.request_spans import RequestSpans
from scheduler_svc.tracing.step_spans import StepSpans, StepTracing

if TYPE_CHECKING:
    from segue.tracing.tracer import Tracer


class LoopTracer(LoopObserver):
    def __init__(self, core: EngineCore, tracer: Tracer, tracing: StepTracing) -> None:
        super().__init__(core)
        self._requests = RequestSpans(tracer, core.state.requests)
        self._steps = StepSpans(tracer, self._requests, tracing)
        self._commit_begun_ns = 0

    def use(self, config: SchedulerServiceConfig) -> None:
        self._steps.tracing = StepTracing.of(config)

    def begin(self) -> None:
        """What an earlier scheduler has left is gone on with, and says so."""
        epoch, self._steps.leader_id = self.core.leader
        now_ns = time.time_ns()
        for lane in self.core.state.lanes.values():
            self._steps.adopt(lane)
        for request in self.core.state.requests.values():
            if not request.is_finished:
                link = self._steps.last_step_with(request.lane_id, request.request_id)
                self._requests.take_over(request, epoch, now_ns, link)

    def handle(self, event: Event) -> list[Reply]:
        known = self._known(event)
        started_ns = time.time_ns()
        replies = self.core.handle(event)
        ended_ns = time.time_ns()
        match event:
            case ModelOutputReceived():
                update = (started_ns, ended_ns)
                self._steps.result_taken(event.executor_id, event.result, update)
            case RequestsSubmitted():
                self._submitted(event, replies, known, ended_ns)
            case SessionOpened() | RequestsAttached():
                ids = [item.request_id for item in event.attachments]
                self._requests.attached(ids, event.gateway_id, ended_ns)
                self._requests.find_preempted("client_had_more", ended_ns)
            case GenerationEnded():
                self._lane_lost(event.executor_id, event.cause, ended_ns)
            case ExecutorConnected():
                self._lane_lost(event.executor_id, "executor_restarted", ended_ns)
            case LaneDrained():
                self._requests.find_preempted("lane_drained", ended_ns)
            case PrefixCacheReset():
                self._requests.find_preempted("cache_reset", ended_ns)
            case _:
                pass
        return replies

    def plan(self, ready: Collection[str]) -> None:
        started_ns = time.time_ns()
        self.core.plan(ready, self._steps.traceparent_of)
        ended_ns = time.time_ns()
        for executor_id, step in self.core.last_plans:
            link = self._steps.planned(self.core.state.lanes[executor_id], step, ended_ns)
            self._requests.planned(executor_id, step.plan, started_ns, link)
        self._steps.planning_ended()

    def commit_begins(self) -> None:
        self._commit_begun_ns = time.time_ns()

    def committed(self) -> None:
        now_ns = time.time_ns()
        self._steps.committed(self._commit_begun_ns, now_ns)
        self._requests.settle(self.core.state.touched, now_ns)

    def sent(self) -> None:
        self._steps.sent(time.time_ns())

    def _known(self, event: Event) -> set[str]:
        """Requests of a submission that are not new, asked before they are handled."""
        if not isinstance(event, RequestsSubmitted):
            return set()
        ids = {submission.request_id for submission in event.submissions}
        return ids & self.core.state.requests.keys()

    def _submitted(
        self, event: RequestsSubmitted, replies: list[Reply], known: set[str], now_ns: int
    ) -> None:
        rejected = {reply.request_id: reply for reply in replies if isinstance(reply, Rejected)}
        for submission in event.submissions:
            request_id = submission.request_id
            if request_id in rejected:
                reply = rejected[request_id]
                self._requests.rejected(submission, reply.code.value, reply.message, now_ns)
            elif request_id not in known:
                self._requests.begin(submission)
        if known:
            self._requests.attached(known, event.gateway_id, now_ns)

    def _lane_lost(self, executor_id: str, cause: str, now_ns: int) -> None:
        """If it was: an executor that goes on in its generation has lost nothing."""
        lane = self.core.state.lanes.get(executor_id)
        if lane is not None:
            self._steps.end_lost(lane, cause, now_ns)
        self._requests.find_preempted(cause, now_ns)
