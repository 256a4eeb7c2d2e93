"""Executors in and out: registered, connected, opened, failed, lost, drained (rule 4).

Knows nothing about gateways or connections. Invariant: a generation that ends takes with it every
claim about that executor's memory: steps in flight, block tables, hashes.
"""

from __future__ import annotations

from scheduler_svc.core.engine_state import EngineState
from scheduler_svc.core.events import (
    ExecutorConnected,
    ExecutorRegistered,
    GenerationEnded,
    LaneDrained,
    LaneOpened,
    LaneRefused,
    Reply,
)
from scheduler_svc.core.lane import Lane, LaneStatus
from scheduler_svc.core.request import Request
from segue.types import FinishReason, Generation, StepKey


class Generations:
    """The handlers of what comes from executors. Replies are due after the next commit."""

    def __init__(self, state: EngineState) -> None:
        self._state = state

    def register(self, event: ExecutorRegistered) -> list[Reply]:
        lane = self._state.lanes.get(event.executor_id)
        if lane is None:
            lane = Lane(event.executor_id, event.address)
            self._state.lanes[event.executor_id] = lane
        elif lane.address == event.address:
            return []
        lane.address = event.address
        self._state.dirty_lanes.add(event.executor_id)
        return []

    def connect(self, event: ExecutorConnected) -> list[Reply]:
        """Go on in the same generation, or end it and open a new one."""
        lane = self._state.lanes[event.executor_id]
        reason = self._refusal(lane, event)
        if reason is not None:
            return [LaneRefused(event.executor_id, reason, event.connection)]
        is_new = not lane.holds_what_it_claims(event)
        if is_new:
            self._open_new_generation(lane, event)
            last_step_id = lane.next_step_id - 1
        elif event.last_step is not None:
            last_step_id = event.last_step.step_id
        else:
            last_step_id = lane.retired.step_id
        assert lane.generation is not None
        opened = LaneOpened(
            lane.executor_id,
            lane.generation,
            next_step_id=lane.next_step_id,
            results_after_step_id=lane.retired.step_id,
            last_step_id=last_step_id,
            is_new=is_new,
            connection=event.connection,
        )
        return [opened]

    def end(self, event: GenerationEnded) -> list[Reply]:
        """The lane is given up until its executor connects again; its requests go elsewhere."""
        lane = self._state.lanes.get(event.executor_id)
        if lane is None or lane.generation != event.generation or not lane.is_open:
            return []
        self._end_generation(lane, event.now_ms, blame=True)
        lane.status = LaneStatus.LOST
        assert lane.policy is not None
        self._state.place_at_head(lane.policy.take_all(), event.now_ms)
        self._state.place_unplaced(event.now_ms)  # what was still to come will not come
        return []

    def drain(self, event: LaneDrained) -> list[Reply]:
        """Output in flight of the requests that move is still taken, from here (H28)."""
        lane = self._state.lanes.get(event.executor_id)
        if lane is None or lane.status is not LaneStatus.ACTIVE:
            return []
        assert lane.policy is not None
        lane.status = LaneStatus.DRAINING
        self._state.dirty_lanes.add(lane.executor_id)
        lane.policy.preempt_all()
        self._state.place_at_head(lane.policy.take_all(), event.now_ms)
        return []

    def _refusal(self, lane: Lane, event: ExecutorConnected) -> str | None:
        block_size = self._state.config.scheduler.block_size
        if event.capacity.block_size != block_size:
            return f"its block size is {event.capacity.block_size}, the scheduler's {block_size}"
        if event.capacity.num_blocks < 2:
            return "it has room for less than one block"
        if event.incarnation_id < lane.incarnation_id:  # H31: they sort by start time
            return f"a newer process has the id {lane.executor_id}"
        return None

    def _open_new_generation(self, lane: Lane, event: ExecutorConnected) -> None:
        state = self._state
        if lane.is_open:
            self._end_generation(lane, event.now_ms, blame=True)
        lane.status = LaneStatus.ACTIVE
        self._fit_policy(lane, event)
        lane.incarnation_id = event.incarnation_id
        lane.generation = Generation(state.epoch, state.next_generation_number)
        state.next_generation_number += 1
        lane.retired = StepKey(lane.next_step_id - 1, 0)
        state.dirty_lanes.add(lane.executor_id)
        state.counters.num_generations += 1
        state.place_unplaced(event.now_ms)

    def _fit_policy(self, lane: Lane, event: ExecutorConnected) -> None:
        """Give the lane a policy for its capacity; the requests that it had are placed again."""
        if lane.policy is not None and lane.capacity == event.capacity:
            return
        waiting: list[Request] = []
        if lane.policy is not None:
            waiting = lane.policy.take_all()
            self._state.counters.num_tokens_recomputed += lane.policy.num_tokens_given_back()
        lane.capacity = event.capacity
        lane.policy = self._state.new_policy(lane)
        self._state.place_at_head(waiting, event.now_ms)

    def _end_generation(self, lane: Lane, now_ms: int, *, blame: bool) -> None:
        """Cancel the steps in flight, preempt in order, forget the hashes (rule 4).

        A request that was in flight each time an executor died gets an error in the end (H30).
        """
        state = self._state
        assert lane.policy is not None
        suspects: list[Request] = []
        for step in lane.planned:
            lane.policy.cancel_step(step.plan)
            for request_id in step.plan.num_scheduled_tokens:
                request = state.requests.get(request_id)
                if request is not None and request not in suspects:
                    suspects.append(request)
        lane.planned.clear()
        lane.policy.end_generation()
        state.dirty_lanes.add(lane.executor_id)
        state.counters.num_generations_ended += 1
        for request in suspects if blame else []:
            request.num_lane_losses += 1
            state.at_risk.add(request.request_id)
            state.dirty_requests[request.request_id] = request
            if request.is_finished or request.num_lane_losses < state.config.max_lane_losses:
                continue
            message = f"{request.num_lane_losses} executors in a row were lost while it ran"
            state.end_request(request, FinishReason.ERROR, message, now_ms)
