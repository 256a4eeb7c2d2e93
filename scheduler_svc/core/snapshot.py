"""Objects to rows and back: the delta of a commit, the whole state, and its restoration.

Knows nothing about decisions or about Redis. Invariant (I10): the deltas taken, applied one after
another, are `full_rows()`; and restoring those gives a core whose `full_rows()` are the same.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection

from scheduler_svc.core.engine_state import Codec, EngineState
from scheduler_svc.core.events import PauseState
from scheduler_svc.core.journal import Journal
from scheduler_svc.core.lane import Lane, PlannedStep
from scheduler_svc.core.lane_row import (
    read_block_row,
    read_lane_row,
    write_block_row,
    write_lane_row,
)
from scheduler_svc.core.reconfiguration import Reconfiguration, write_settings
from scheduler_svc.core.request import Request
from scheduler_svc.core.request_changes import QUEUE_TABLES, RequestChanges
from scheduler_svc.core.request_row import read_request_row
from scheduler_svc.core.rows import Delta, Key, Rows, Table

IN_SERVICE = (Table.LANE_RUNNING, Table.LANE_SWAPPED, Table.LANE_HOLDING)


class Snapshot:
    """Keeps what the store has, so that a delta holds only what changed."""

    def __init__(self, state: EngineState, codec: Codec, reconfiguration: Reconfiguration) -> None:
        self._state = state
        self._reconfiguration = reconfiguration
        self._codec = codec
        self._requests = RequestChanges(codec)
        self._stored_steps: dict[str, set[int]] = {}
        self._stored_unplaced: list[str] = []
        self._stored_engine: dict[str, bytes] = {}
        self._discarded: list[Key] = []

    def discard(self, rows: Rows) -> None:
        """Let the next delta drop every key of these rows before it writes anything."""
        self._discarded = [*rows.hashes, *rows.ranks, *rows.strings]

    def has_changes(self) -> bool:
        state = self._state
        return bool(
            self._discarded
            or state.dirty_requests
            or state.dirty_lanes
            or state.expired
            or not all(journal.is_empty for journal in state.journals.values())
            or self._unplaced_ids() != self._stored_unplaced
            or self._engine_fields() != self._stored_engine
        )

    def take_delta(self) -> Delta:
        """All that changed since the last call; it counts as stored from now on."""
        state, delta = self._state, Delta(dropped=self._discarded)
        self._discarded = []
        for request_id in state.expired:  # first: one of that name may have come since
            self._requests.forget(delta, request_id)
        state.expired.clear()
        self._add_requests(delta)
        for executor_id in sorted(state.dirty_lanes):
            self._add_lane(delta, state.lanes[executor_id])
        state.dirty_lanes.clear()
        state.rewritten.clear()
        self._add_engine(delta)
        return delta

    def _add_requests(self, delta: Delta) -> None:
        state = self._state
        dirty, journals = state.dirty_requests, state.journals
        for executor_id, journal in journals.items():
            if not journal.is_empty:
                state.dirty_lanes.add(executor_id)
            dirty.update(journal.requests)
            journal.requests.clear()
        self._requests.add(delta, dirty.values(), state.rewritten)
        for journal in journals.values():
            for request_id in dirty:
                journal.forget(request_id)
            self._requests.add_progress(delta, journal, state.requests)
            self._requests.add_grown(delta, journal.grown.values())
            journal.clear_progress()
        dirty.clear()

    def full_rows(self) -> Rows:
        """The whole state as one delta, applied to nothing."""
        whole = Snapshot(self._state, self._codec, self._reconfiguration)
        delta = Delta()
        whole._requests.add(delta, self._state.requests.values(), ())
        for lane in self._state.lanes.values():
            whole._add_lane_row(delta, lane)
            whole._add_steps(delta, lane)
            if lane.policy is not None:
                whole._add_blocks(delta, lane, lane.policy.touched_block_ids())
        whole._add_engine(delta)
        rows = Rows()
        rows.apply(delta)
        return rows

    def restore(self, rows: Rows) -> None:
        """Fill an empty state from rows."""
        state = self._state
        engine = self._restore_engine_and_requests(rows)
        for executor_id, row in rows.hashes.get(Key(Table.LANES), {}).items():
            self._restore_lane(rows, executor_id, row)
        state.unplaced = self._in_order(rows, Key(Table.UNPLACED))
        self._mark_all_stored()
        self._stored_engine = dict(engine)  # an empty store has no such row yet

    def restore_requests(self, rows: Rows) -> None:
        """Of rows that were made under another configuration: requests, and where executors are.

        The next delta drops all else, so that no policy reads what another one wrote.
        """
        state = self._state
        self._restore_engine_and_requests(rows)
        for request_id, request in state.requests.items():
            state.requests[request_id] = request.without_lane()
        for executor_id, row in sorted(rows.hashes.get(Key(Table.LANES), {}).items()):
            lane, _ = read_lane_row(executor_id, row)
            state.lanes[executor_id] = Lane(
                executor_id,
                lane.address,
                incarnation_id=lane.incarnation_id,
                next_step_id=lane.next_step_id,
            )
            for table in (*IN_SERVICE, Table.LANE_WAITING):
                state.unplaced += self._in_order(rows, Key(table, executor_id))
        state.unplaced += self._in_order(rows, Key(Table.UNPLACED))
        state.dirty_requests.update(state.requests)
        state.dirty_lanes.update(state.lanes)
        self.discard(rows)

    def _in_order(self, rows: Rows, key: Key) -> list[Request]:
        ranks = rows.ranks.get(key, {})
        return [self._state.requests[i] for i in sorted(ranks, key=ranks.__getitem__)]

    def _restore_engine_and_requests(self, rows: Rows) -> dict[str, bytes]:
        state = self._state
        assert not state.requests
        assert not state.lanes
        engine = rows.hashes.get(Key(Table.ENGINE), {})
        if engine:
            state.pause_state = PauseState(engine["pause_state"].decode())
            state.next_generation_number = int(engine["next_generation_number"])
            self._reconfiguration.restore(engine.get("settings", b""))
        submissions = rows.hashes.get(Key(Table.SUBMISSIONS), {})
        for request_id, row in rows.hashes.get(Key(Table.REQUESTS), {}).items():
            self._restore_request(rows, submissions[request_id], request_id, row)
        return engine

    def _mark_all_stored(self) -> None:
        state = self._state
        state.dirty_requests.clear()
        state.dirty_lanes.clear()
        for journal in state.journals.values():
            journal.clear()
        unused = Delta()
        self._requests.add(unused, state.requests.values(), ())
        for lane in state.lanes.values():
            self._stored_steps[lane.executor_id] = {s.plan.step_id for s in lane.planned}
        self._add_engine(unused)

    def _engine_fields(self) -> dict[str, bytes]:
        return {
            "pause_state": self._state.pause_state.value.encode(),
            "next_generation_number": str(self._state.next_generation_number).encode(),
            "settings": write_settings(self._state.settings),
        }

    def _unplaced_ids(self) -> list[str]:
        return [request.request_id for request in self._state.unplaced]

    def _add_engine(self, delta: Delta) -> None:
        fields = self._engine_fields()
        if fields != self._stored_engine:
            delta.fields[Key(Table.ENGINE)] = fields
            self._stored_engine = fields
        unplaced = self._unplaced_ids()
        if unplaced != self._stored_unplaced:
            delta.dropped.append(Key(Table.UNPLACED))
            if unplaced:
                delta.ranks[Key(Table.UNPLACED)] = {r: i for i, r in enumerate(unplaced)}
            self._stored_unplaced = unplaced

    def _add_lane(self, delta: Delta, lane: Lane) -> None:
        self._add_lane_row(delta, lane)
        self._add_steps(delta, lane)
        journal = self._state.journals.get(lane.executor_id)
        if journal is not None and journal.blocks:
            self._add_blocks(delta, lane, journal.blocks)
            journal.blocks.clear()

    def _add_lane_row(self, delta: Delta, lane: Lane) -> None:
        delta.fields.setdefault(Key(Table.LANES), {})[lane.executor_id] = write_lane_row(lane)

    def _add_steps(self, delta: Delta, lane: Lane) -> None:
        key = Key(Table.LANE_STEPS, lane.executor_id)
        stored = self._stored_steps.setdefault(lane.executor_id, set())
        planned = {step.plan.step_id: step.body for step in lane.planned}
        gone = stored - planned.keys()
        if gone:
            delta.removed_fields[key] = [str(step_id) for step_id in sorted(gone)]
        new = {str(step_id): body for step_id, body in planned.items() if step_id not in stored}
        if new:
            delta.fields[key] = new
        self._stored_steps[lane.executor_id] = set(planned)

    def _add_blocks(self, delta: Delta, lane: Lane, block_ids: Collection[int]) -> None:
        assert lane.policy is not None
        assert lane.capacity is not None
        num_blocks = lane.capacity.num_blocks
        rows: dict[str, bytes] = {}
        free: dict[str, int] = {}
        as_new = [str(block_id) for block_id in block_ids if block_id >= num_blocks]  # no more
        not_free: list[str] = []
        for block in lane.policy.block_rows([b for b in block_ids if b < num_blocks]):
            name = str(block.block_id)
            if block.is_as_new:
                as_new.append(name)
                continue
            rows[name] = write_block_row(block)
            if block.rank is None:
                not_free.append(name)
            else:
                free[name] = block.rank
        blocks_key = Key(Table.LANE_BLOCKS, lane.executor_id)
        free_key = Key(Table.LANE_FREE, lane.executor_id)
        if rows:
            delta.fields[blocks_key] = rows
        if free:
            delta.ranks[free_key] = free
        if as_new:
            delta.removed_fields[blocks_key] = as_new
        if as_new or not_free:
            delta.removed_ranks[free_key] = as_new + not_free

    def _restore_request(self, rows: Rows, body: bytes, request_id: str, row: bytes) -> None:
        submission = self._codec.decode_submission(body)
        request = Request(submission, block_size=self._state.config.scheduler.block_size)
        logprobs = rows.hashes.get(Key(Table.LOGPROBS, request_id), {})
        decoded = [
            self._codec.decode_logprobs(logprobs[str(index)])[0] for index in range(len(logprobs))
        ]
        outputs = _unpack(rows.strings.get(Key(Table.OUTPUTS, request_id), b""))
        if outputs:
            request.set_output(outputs, decoded)
        read_request_row(request, row)
        tables = rows.hashes.get(Key(Table.LANE_TABLES, request.lane_id), {})
        request.block_ids = [int(block_id) for block_id in tables.get(request_id, b"").split()]
        self._state.requests[request_id] = request
        if request.num_lane_losses:
            self._state.at_risk.add(request_id)

    def _restore_lane(self, rows: Rows, executor_id: str, row: bytes) -> None:
        state = self._state
        lane, scalars = read_lane_row(executor_id, row)
        state.lanes[executor_id] = lane
        state.journals.setdefault(executor_id, Journal())
        steps = rows.hashes.get(Key(Table.LANE_STEPS, executor_id), {})
        for step_id in sorted(steps, key=int):
            body = steps[step_id]
            lane.planned.append(PlannedStep(self._codec.decode_step(body), body))
        if scalars is None:
            return
        lane.policy = state.new_policy(lane)
        queued: list[Request] = []
        for queue, table in QUEUE_TABLES.items():
            ranks = rows.ranks.get(Key(table, executor_id), {})
            for request_id in sorted(ranks, key=ranks.__getitem__):
                request = state.requests[request_id]
                request.queue, request.queue_rank = queue, ranks[request_id]
                queued.append(request)
        free = rows.ranks.get(Key(Table.LANE_FREE, executor_id), {})
        block_rows = rows.hashes.get(Key(Table.LANE_BLOCKS, executor_id), {})
        blocks = [read_block_row(int(b), data, free.get(b)) for b, data in block_rows.items()]
        lane.policy.restore(queued, blocks, scalars)


def _unpack(data: bytes) -> list[int]:
    tokens = array("i")
    tokens.frombytes(data)
    return tokens.tolist()
