"""What the scheduler knows, all of it: requests, lanes, and what changed since the last commit.

Knows nothing about events (see `engine_core.py`) or rows (see `snapshot.py`). Invariant: a request
that has not ended is in exactly one place: a queue of its lane, or `unplaced`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Protocol

from scheduler_svc.core.commit_record import CommitRecord
from scheduler_svc.core.events import Counters, PauseState, Setting
from scheduler_svc.core.journal import Journal
from scheduler_svc.core.lane import Lane, LaneStatus
from scheduler_svc.core.placement import choose_lane
from scheduler_svc.core.policy import SchedulingPolicy
from scheduler_svc.core.request import Request
from scheduler_svc.core.scheduler_config import SchedulerConfig
from segue.types import Finish, FinishReason, SchedulerOutput, Submission, TokenLogprobs, Usage


@dataclass(slots=True, frozen=True)
class EngineConfig:
    """What the engine adds to a policy's own configuration. Times in milliseconds."""

    scheduler: SchedulerConfig
    depth: int = 2  # steps in flight for each lane
    max_queued_requests: int = 1024
    finished_ttl_ms: int = 300_000
    max_lane_losses: int = 3  # of a request in flight without progress, then it is given up


class Codec(Protocol):
    """Values to the bytes that are stored, and back. The shell brings it, so the core is pure."""

    def encode_step(self, plan: SchedulerOutput) -> bytes: ...
    def decode_step(self, body: bytes) -> SchedulerOutput: ...
    def encode_submission(self, submission: Submission) -> bytes: ...
    def decode_submission(self, body: bytes) -> Submission: ...
    def encode_logprobs(self, logprobs: list[TokenLogprobs]) -> bytes: ...
    def decode_logprobs(self, body: bytes) -> list[TokenLogprobs]: ...


MakePolicy = Callable[[str, SchedulerConfig, dict[str, Request], Journal], SchedulingPolicy]
"""(lane id, configuration with the lane's capacity in it, all requests, journal) -> a policy."""


@dataclass(slots=True)
class EngineState:
    config: EngineConfig
    make_policy: MakePolicy
    requests: dict[str, Request] = field(default_factory=dict[str, Request])
    lanes: dict[str, Lane] = field(default_factory=dict[str, Lane])
    unplaced: list[Request] = field(default_factory=list[Request])
    pause_state: PauseState = PauseState.UNPAUSED
    settings: dict[str, Setting] = field(default_factory=dict[str, Setting])  # beside the flags
    next_generation_number: int = 1
    epoch: int = 0
    journals: dict[str, Journal] = field(default_factory=dict[str, Journal])
    dirty_requests: dict[str, Request] = field(default_factory=dict[str, Request])
    dirty_lanes: set[str] = field(default_factory=set[str])
    rewritten: set[str] = field(default_factory=set[str])  # their stored output is not a prefix
    expired: list[str] = field(default_factory=list[str])
    touched: dict[str, None] = field(default_factory=dict[str, None])
    at_risk: set[str] = field(default_factory=set[str])  # all whose num_lane_losses is not 0
    counters: Counters = field(default_factory=Counters)
    record: CommitRecord = field(default_factory=CommitRecord)

    def lane_of(self, request: Request) -> Lane | None:
        return self.lanes.get(request.lane_id)

    def new_policy(self, lane: Lane) -> SchedulingPolicy:
        """A policy for the lane's capacity, with nothing in it."""
        assert lane.capacity is not None
        journal = self.journals.setdefault(lane.executor_id, Journal())
        policy = self.make_policy(
            lane.executor_id,
            self.config.scheduler.for_capacity(lane.capacity),
            self.requests,
            journal,
        )
        policy.set_pause_state(self.pause_state)
        policy.on_foreign_finish = self._finish_where_it_is
        return policy

    def _finish_where_it_is(self, request: Request, finish: Finish, now_ms: int) -> None:
        """Take a request that has ended out of its lane, or out of `unplaced`."""
        lane = self.lane_of(request)
        if lane is None or lane.policy is None:
            self.unplaced.remove(request)
            request.set_finished(finish, now_ms)
        else:
            lane.policy.finish_request(request, finish, now_ms)
            self.dirty_lanes.add(lane.executor_id)

    def place(self, request: Request, now_ms: int) -> None:
        """Append a request to the lane that suits it, or keep it until there is one."""
        lane = choose_lane(request, self.lanes.values())
        self.dirty_requests[request.request_id] = request
        if lane is None:
            self.unplaced.append(request)
            self._end_if_too_long(request, now_ms)
            return
        assert lane.policy is not None
        request.lane_id = lane.executor_id
        lane.policy.add_request(request)
        self.dirty_lanes.add(lane.executor_id)

    def place_at_head(self, requests: list[Request], now_ms: int) -> None:
        """Put requests that were served before in front, in this order."""
        chosen: dict[str, list[Request]] = {}
        homeless: list[Request] = []
        for request in requests:
            self.dirty_requests[request.request_id] = request
            lane = choose_lane(request, self.lanes.values())
            if lane is None:
                request.lane_id = ""
                homeless.append(request)
            else:
                request.lane_id = lane.executor_id
                chosen.setdefault(lane.executor_id, []).append(request)
        self.unplaced[:0] = homeless
        for executor_id, group in chosen.items():
            policy = self.lanes[executor_id].policy
            assert policy is not None
            policy.prepend_requests(group)
            self.dirty_lanes.add(executor_id)
        for request in homeless:
            self._end_if_too_long(request, now_ms)

    def place_unplaced(self, now_ms: int) -> None:
        if not any(lane.status is LaneStatus.ACTIVE for lane in self.lanes.values()):
            return
        waiting, self.unplaced = self.unplaced, []
        for request in waiting:
            self.place(request, now_ms)

    def _end_if_too_long(self, request: Request, now_ms: int) -> None:
        """An unplaced request that no executor seen so far could hold would wait for ever."""
        longest = max((lane.max_model_len for lane in self.lanes.values()), default=0)
        if 0 < longest <= request.num_tokens:
            message = f"it has {request.num_tokens} tokens; no executor holds more than {longest}"
            self.end_request(request, FinishReason.ERROR, message, now_ms)

    def withdraw(self, request: Request) -> None:
        """Take a request that has not ended out of its place; its output in flight is dropped."""
        lane = self.lane_of(request)
        if lane is None or lane.policy is None:
            self.unplaced.remove(request)
            request.drop_output_in_flight()  # it may have been drained off a lane
        else:
            lane.policy.release_with_drop(request)
            self.dirty_lanes.add(lane.executor_id)
        self.dirty_requests[request.request_id] = request

    def end_request(
        self, request: Request, reason: FinishReason, message: str, now_ms: int
    ) -> None:
        """End a request that has not ended yet, other than by its own tokens."""
        assert not request.is_finished
        usage = Usage(
            request.num_prompt_tokens, request.num_output_tokens, request.num_cached_tokens or 0
        )
        finish = Finish(reason, usage, message=message)
        self._finish_where_it_is(request, finish, now_ms)
        self.note_finish(request)

    def note_finish(self, request: Request) -> None:
        """A request has ended, whoever ended it: it is to be stored and told."""
        assert request.finish is not None
        reason = request.finish.reason.value
        self.counters.num_finished[reason] = self.counters.num_finished.get(reason, 0) + 1
        self.record.ended.append(request)
        self.dirty_requests[request.request_id] = request
        self.touched[request.request_id] = None

    def note_progress(self, request_ids: Collection[str]) -> None:
        """These came through a step, so no lane is lost because of them."""
        if not self.at_risk:
            return
        for request_id in self.at_risk.intersection(request_ids):
            request = self.requests.get(request_id)
            if request is not None:
                request.num_lane_losses = 0
                self.dirty_requests[request_id] = request
            self.at_risk.discard(request_id)

    def num_queued(self) -> int:
        policies = (lane.policy for lane in self.lanes.values())
        return len(self.unplaced) + sum(p.num_waiting() for p in policies if p is not None)
