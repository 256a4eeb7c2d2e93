"""The answer to GetStatus: who leads, and how each lane stands.

Knows nothing about how it is asked for. Invariant: reads only; all of it is committed state, except
which executors are connected and this process's counters.
"""

from __future__ import annotations

from scheduler_svc.config import SchedulerServiceConfig
from scheduler_svc.core.lane import Lane
from scheduler_svc.core.request import QueueName
from scheduler_svc.loop import EngineLoop
from segue import wire
from segue.v1 import scheduler_pb2, types_pb2


def status_message(
    loop: EngineLoop, config: SchedulerServiceConfig
) -> scheduler_pb2.GetStatusResponse:
    state, counters = loop.core.state, loop.core.state.counters
    epoch, leader_id = loop.core.leader
    queued = [(r.lane_id, r.queue) for r in state.requests.values() if r.queue is not None]
    connected = loop.connected_lanes()
    return scheduler_pb2.GetStatusResponse(
        leader=types_pb2.Leader(epoch=epoch, leader_id=leader_id),
        commit_seq=loop.timings.num_commits,
        policy=config.policy,
        pause_state=state.pause_state.value,
        lanes=[_lane_status(lane, queued, connected) for lane in state.lanes.values()],
        num_requests_unplaced=len(state.unplaced),
        num_requests_finished=sum(r.is_finished for r in state.requests.values()),
        num_streams_resumed=counters.num_streams_resumed,
        num_tokens_recomputed=loop.core.num_tokens_recomputed(),
        num_steps_finished=counters.num_steps_finished,
        is_store_down=loop.is_store_down,
    )


def _lane_status(
    lane: Lane, queued: list[tuple[str, QueueName]], connected: set[str]
) -> scheduler_pb2.LaneStatus:
    queues = [queue for lane_id, queue in queued if lane_id == lane.executor_id]
    num_waiting = queues.count(QueueName.WAITING) + queues.count(QueueName.HOLDING)
    return scheduler_pb2.LaneStatus(
        executor_id=lane.executor_id,
        address=lane.address,
        status=lane.status.value,
        is_connected=lane.executor_id in connected,
        generation=wire.generation_to_proto(lane.generation),
        next_step_id=lane.next_step_id,
        num_steps_in_flight=len(lane.planned),
        num_running=queues.count(QueueName.RUNNING),
        num_waiting=num_waiting,
        num_swapped=queues.count(QueueName.SWAPPED),
        num_free_blocks=lane.policy.num_free_blocks() if lane.policy is not None else 0,
        num_usable_blocks=lane.policy.num_usable_blocks() if lane.policy is not None else 0,
    )
