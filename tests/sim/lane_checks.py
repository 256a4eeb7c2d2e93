"""Checks of one scheduler's state: windows (I3), counts (I7), hashes against KV (I6).

Knows nothing about events. Invariant: a check changes nothing.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from scheduler_svc.core.engine_state import EngineState
from scheduler_svc.core.lane import Lane
from scheduler_svc.core.unified.scheduler import UnifiedScheduler
from tests.sim.world import Violation

if TYPE_CHECKING:
    from tests.sim.cluster import Cluster
    from tests.sim.token_kv_executor import ExecutorProcess


def check_window(lane: Lane, executor: ExecutorProcess | None, depth: int) -> None:
    """I3: R <= A <= P <= R + depth; the results of (A - depth, A] are kept once they are there."""
    planned = [step.plan.step_id for step in lane.planned]
    if planned and planned != list(range(lane.retired.step_id + 1, lane.next_step_id)):
        raise Violation(f"I3: retired {lane.retired}, planned {planned}")
    if len(planned) > depth:
        raise Violation(f"I3: {len(planned)} steps are in flight")
    if executor is None or not executor.life.is_alive or not lane.is_open:
        return
    ledger = executor.ledger
    if ledger.generation != lane.generation or ledger._last_step is None:
        return
    accepted = ledger._last_step.step_id
    if not lane.retired.step_id <= accepted < lane.next_step_id:
        raise Violation(f"I3: retired {lane.retired}, accepted {accepted}, planned {planned}")
    waiting = {plan.step_id for plan in ledger._queue}
    if ledger.running_step is not None:
        waiting.add(ledger.running_step.step_id)
    for step_id in range(max(ledger._first_step_id, accepted - depth + 1), accepted + 1):
        if step_id not in waiting and ledger.failure is None and step_id not in ledger._results:
            raise Violation(f"I3: the result of step {step_id} is not kept")


def check_counts(state: EngineState) -> None:
    """I7: what is in flight is what unretired steps hold; references are tables and free list."""
    in_flight: Counter[str] = Counter()
    for lane in state.lanes.values():
        for step in lane.planned:
            in_flight.update(step.plan.num_scheduled_tokens)
        if isinstance(lane.policy, UnifiedScheduler):
            _check_references(lane, lane.policy, state)
    for request_id, request in state.requests.items():
        if request.num_in_flight_tokens != in_flight[request_id]:
            raise Violation(
                f"I7: {request_id} has {request.num_in_flight_tokens} in flight, its steps "
                f"{in_flight[request_id]}"
            )
        if not 0 <= request.num_stale_output_tokens <= request.num_in_flight_tokens:
            raise Violation(f"I7: {request_id} has more stale than in flight")
        if request.is_finished and (request.block_ids or request.queue is not None):
            raise Violation(f"I7: {request_id} has ended, and still holds something")
    unknown = in_flight.keys() - state.requests.keys()
    if unknown:
        raise Violation(f"I7: {unknown} are in flight and not known")
    _check_places(state)


def _check_references(lane: Lane, policy: UnifiedScheduler, state: EngineState) -> None:
    references: Counter[int] = Counter()
    for request in state.requests.values():
        if request.lane_id == lane.executor_id:
            references.update(request.block_ids)
    pool = policy.lane.kv.pool
    free = {block.block_id for block in pool.free_queue.in_order()}
    for block in pool.blocks[1:]:
        if block.ref_cnt != references[block.block_id]:
            raise Violation(
                f"I7: block {block.block_id} of {lane.executor_id} has {block.ref_cnt} "
                f"references, and stands in {references[block.block_id]} tables"
            )
        if (block.ref_cnt == 0) != (block.block_id in free):
            raise Violation(f"I7: block {block.block_id} is free and in use, or neither")
    if len(policy.lane.running) > policy.config.max_num_seqs:
        raise Violation(f"I7: {len(policy.lane.running)} requests run")


def _check_places(state: EngineState) -> None:
    """Who has not ended is in exactly one place."""
    places: Counter[str] = Counter(request.request_id for request in state.unplaced)
    for lane in state.lanes.values():
        if isinstance(lane.policy, UnifiedScheduler):
            queues = lane.policy.lane
            for request in (*queues.running, *queues.waiting, *queues.holding):
                places[request.request_id] += 1
                if request.lane_id != lane.executor_id:
                    raise Violation(f"I7: {request.request_id} is queued on another lane")
    for request_id, request in state.requests.items():
        if places[request_id] != (0 if request.is_finished else 1):
            raise Violation(f"I7: {request_id} ({request.status.name}) is in {places[request_id]}")


def check_hashes(cluster: Cluster, state: EngineState) -> None:
    """I6: while nothing is in flight, a block with a hash holds the tokens of that hash."""
    size = cluster.settings.engine.scheduler.block_size
    chain_of: dict[bytes, list[int]] = {}
    for request in state.requests.values():
        chain = cluster.chain(request.all_token_ids)
        for index, block_hash in enumerate(request.block_hashes):
            chain_of[block_hash] = chain[index * size : (index + 1) * size]
    for lane in state.lanes.values():
        executor = cluster.executor_at(lane.address)
        if executor is None or not executor.life.is_alive or lane.planned or not lane.is_open:
            continue
        if executor.ledger.generation != lane.generation or executor.ledger.running_step:
            continue
        assert isinstance(lane.policy, UnifiedScheduler)
        for block in lane.policy.lane.kv.pool.blocks:
            expected = chain_of.get(block.block_hash) if block.block_hash else None
            start = block.block_id * size
            if expected and executor.kv.slots[start : start + size] != expected:
                raise Violation(f"I6: block {block.block_id} is not what its hash says")
