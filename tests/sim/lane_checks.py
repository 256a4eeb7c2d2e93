"""Checks of one scheduler's state: windows (I3), counts (I7), hashes against KV (I6).

Knows nothing about events. Invariant: a check changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from scheduler_svc.core.engine_state import EngineState
from scheduler_svc.core.lane import Lane
from scheduler_svc.core.policy import SchedulingPolicy
from scheduler_svc.core.three_queue.scheduler import ThreeQueueScheduler
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


def check_counts(state: EngineState, most_seats: int) -> None:
    """I7: what is in flight is what unretired steps hold; references are tables and free list.

    `most_seats`: the highest limit that there was; who runs stays when it is lowered.
    """
    in_flight: Counter[str] = Counter()
    for lane in state.lanes.values():
        for step in lane.planned:
            in_flight.update(step.plan.num_scheduled_tokens)
        if isinstance(lane.policy, UnifiedScheduler):
            _check_references(lane, lane.policy, state)
            _check_seats(lane.policy, most_seats)
        elif isinstance(lane.policy, ThreeQueueScheduler):
            _check_v0_references(lane, lane.policy, state)
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
    if references[0]:
        raise Violation(f"I7: the null block of {lane.executor_id} is a request's")
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


def _check_seats(policy: UnifiedScheduler, most_seats: int) -> None:
    num_running = len(policy.lane.running)
    if num_running > most_seats:
        raise Violation(f"I7: {num_running} requests run")


def _check_v0_references(lane: Lane, policy: ThreeQueueScheduler, state: EngineState) -> None:
    """On both devices; who is swapped out has CPU blocks, and nobody else."""
    tables = policy.lane.tables
    own = [r for r in state.requests.values() if r.lane_id == lane.executor_id]
    on_gpu = Counter(block_id for request in own for block_id in request.block_ids)
    on_cpu = Counter(b for table in tables.cpu_tables.values() for b in table)
    for pool, references in ((tables.gpu, on_gpu), (tables.cpu, on_cpu)):
        free = set(pool.free_block_ids())
        for block in pool.blocks:
            if block.ref_cnt != references[block.block_id]:
                raise Violation(
                    f"I7: block {block.block_id} of {lane.executor_id} has {block.ref_cnt} "
                    f"references, and stands in {references[block.block_id]} tables"
                )
            is_free = block.block_id in free or block.eviction is not None
            if (block.ref_cnt == 0) != is_free:
                raise Violation(f"I7: block {block.block_id} is free and in use, or neither")
    if tables.cpu_tables.keys() != {request.request_id for request in policy.lane.swapped}:
        raise Violation(f"I7: swapped out of {lane.executor_id}: {list(tables.cpu_tables)}")


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
        elif lane.policy is not None:
            _count_by_queue_names(lane, lane.policy, state, places)
    for request_id, request in state.requests.items():
        if places[request_id] != (0 if request.is_finished else 1):
            raise Violation(f"I7: {request_id} ({request.status.name}) is in {places[request_id]}")


def _count_by_queue_names(
    lane: Lane, policy: SchedulingPolicy, state: EngineState, places: Counter[str]
) -> None:
    """Of a policy whose queues we do not know: what its requests say, and how many it has."""
    queued = [
        request.request_id
        for request in state.requests.values()
        if request.lane_id == lane.executor_id and request.queue is not None
    ]
    if len(queued) != policy.num_unfinished():
        raise Violation(f"I7: {policy.num_unfinished()} unfinished, and {queued} are queued")
    places.update(queued)


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
        for block_id, block_hash in _hashes(lane.policy):
            expected = chain_of.get(block_hash)
            start = block_id * size
            if expected and executor.kv.slots[start : start + size] != expected:
                raise Violation(f"I6: block {block_id} is not what its hash says")


def _hashes(policy: SchedulingPolicy | None) -> Iterable[tuple[int, bytes]]:
    assert policy is not None
    rows = policy.block_rows(policy.touched_block_ids())
    return [(row.block_id, row.block_hash) for row in rows if row.block_hash is not None]
