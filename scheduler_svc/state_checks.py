"""The invariants of DESIGN.md section 3 that rows alone can show: one line for each violation.

Knows the rows as docs/state.md tells them, and trusts none of them; knows no store. Invariant: rows
that a scheduler has committed give no line (the simulation holds it to that), and damage that would
make a successor decide wrongly gives at least one.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from scheduler_svc.core.engine_state import Codec
from scheduler_svc.core.request import RequestStatus
from scheduler_svc.core.rows import Key, Rows, Table

REQUEST_COLUMNS = 18
TOKEN_BYTES = 4
QUEUES = (Table.LANE_WAITING, Table.LANE_HOLDING, Table.LANE_RUNNING, Table.LANE_SWAPPED)
POLICY_WITH_ONE_FREE_LIST = "unified"


class StoredRequest(NamedTuple):
    """What the checks need of a row of `requests`."""

    status: RequestStatus
    lane: str
    num_in_flight: int
    num_stale: int

    @property
    def is_finished(self) -> bool:
        return self.status.name.startswith("FINISHED")


def violations(rows: Rows, codec: Codec, policy: str) -> list[str]:
    """`policy`: the name with which the rows were written."""
    return list(_Checks(rows, codec, policy).lines())


class _Checks:
    def __init__(self, rows: Rows, codec: Codec, policy: str) -> None:
        self._rows = rows
        self._codec = codec
        self._policy = policy
        self._unreadable: list[str] = []
        self._requests = self._read_requests()
        self._lanes = self._read_lanes()
        self._in_flight: Counter[str] = Counter()

    def lines(self) -> Iterator[str]:
        yield from self._unreadable
        yield from self._submissions_and_outputs()
        for lane_id, lane in self._lanes.items():
            yield from self._steps(lane_id, lane)
            yield from self._tables(lane_id, lane)
        yield from self._requests_in_flight()
        yield from self._places()
        yield from self._ends()

    def _read_requests(self) -> dict[str, StoredRequest]:
        found: dict[str, StoredRequest] = {}
        for request_id, row in self._rows.hashes.get(Key(Table.REQUESTS), {}).items():
            columns = row.decode(errors="replace").split("|", REQUEST_COLUMNS - 1)
            try:
                if len(columns) != REQUEST_COLUMNS:
                    raise ValueError(f"{len(columns)} columns instead of {REQUEST_COLUMNS}")
                found[request_id] = StoredRequest(
                    RequestStatus[columns[0]], columns[1], int(columns[4]), int(columns[6])
                )
            except (ValueError, KeyError) as error:
                self._unreadable.append(f"request {request_id}: its row can not be read: {error}")
        return found

    def _read_lanes(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for lane_id, row in self._rows.hashes.get(Key(Table.LANES), {}).items():
            try:
                lane = json.loads(row)
                _ = (lane["retired"][0], lane["next_step_id"], lane["policy"], lane["capacity"])
                found[lane_id] = lane
            except (ValueError, KeyError, TypeError, IndexError) as error:
                self._unreadable.append(f"lane {lane_id}: its row can not be read: {error!r}")
        return found

    def _submissions_and_outputs(self) -> Iterator[str]:
        listed = self._rows.hashes.get(Key(Table.REQUESTS), {})
        submissions = self._rows.hashes.get(Key(Table.SUBMISSIONS), {})
        for request_id in sorted(listed.keys() - submissions.keys()):
            yield f"request {request_id}: it has no submission"
        for request_id in sorted(submissions.keys() - listed.keys()):
            yield f"request {request_id}: it has a submission, and no row"
        for request_id in listed:
            output = self._rows.strings.get(Key(Table.OUTPUTS, request_id), b"")
            if len(output) % TOKEN_BYTES:
                yield f"request {request_id}: {len(output)} bytes of output are no whole tokens"

    def _steps(self, lane_id: str, lane: dict[str, Any]) -> Iterator[str]:
        """I3: the steps in flight are those after the last retired one, without a gap."""
        steps = self._rows.hashes.get(Key(Table.LANE_STEPS, lane_id), {})
        stored = sorted(map(int, steps))
        retired, next_step_id = lane["retired"][0], lane["next_step_id"]
        if stored and stored != list(range(retired + 1, next_step_id)):
            yield (
                f"lane {lane_id}: steps {stored} are in flight, between the retired step "
                f"{retired} and the next one, {next_step_id}"
            )
        for step_id, body in steps.items():
            try:
                self._in_flight.update(self._codec.decode_step(body).num_scheduled_tokens)
            except Exception as error:  # noqa: BLE001 - damaged bytes fail in the decoder's ways
                yield f"lane {lane_id}: step {step_id} can not be read: {error!r}"

    def _requests_in_flight(self) -> Iterator[str]:
        """I7: what a request says is in flight is what unretired steps hold."""
        for request_id, request in self._requests.items():
            held = self._in_flight[request_id]
            if request.num_in_flight != held:
                yield (
                    f"request {request_id}: {request.num_in_flight} tokens are in flight by its "
                    f"row, {held} by the steps"
                )
            if not 0 <= request.num_stale <= request.num_in_flight:
                yield f"request {request_id}: {request.num_stale} stale tokens, more than in flight"
        for request_id in sorted(self._in_flight.keys() - self._requests.keys()):
            yield f"request {request_id}: it is in a step in flight, and has no row"

    def _tables(self, lane_id: str, lane: dict[str, Any]) -> Iterator[str]:
        """I7: a block's references are the tables that it stands in; only unused ones are free."""
        references: Counter[str] = Counter()
        for request_id, text in self._rows.hashes.get(Key(Table.LANE_TABLES, lane_id), {}).items():
            references.update(text.decode().split())
            request = self._requests.get(request_id)
            if request is None:
                yield f"request {request_id}: it has blocks of lane {lane_id}, and no row"
            elif request.is_finished or request.lane != lane_id:
                state = "has ended" if request.is_finished else f"is of lane {request.lane!r}"
                yield f"request {request_id}: it {state}, and has blocks of lane {lane_id}"
        if lane["policy"] is None or lane["capacity"] is None:
            return
        num_blocks = lane["capacity"][0]
        rows = self._rows.hashes.get(Key(Table.LANE_BLOCKS, lane_id), {})
        counts = {block_id: _ref_cnt(row) for block_id, row in rows.items()}
        for block_id in sorted(references.keys() | counts.keys(), key=_number):
            count, held = counts.get(block_id, 0), references[block_id]
            where = f"block {block_id} of lane {lane_id}"
            if not 0 <= _number(block_id) < num_blocks:
                yield f"{where}: there are {num_blocks} blocks"
            elif count is None:
                yield f"{where}: its row can not be read"
            elif count != held:
                yield f"{where}: {count} references by its row, {held} by the block tables"
        if self._policy == POLICY_WITH_ONE_FREE_LIST:
            yield from self._free_list(lane_id, counts)

    def _free_list(self, lane_id: str, counts: dict[str, int | None]) -> Iterator[str]:
        """A block that is as new has no row, and no rank."""
        free = self._rows.ranks.get(Key(Table.LANE_FREE, lane_id), {})
        for block_id, count in counts.items():
            if count and block_id in free:
                yield f"block {block_id} of lane {lane_id}: it is in use, and in the free list"
            if count == 0 and block_id not in free:
                yield f"block {block_id} of lane {lane_id}: nobody uses it, and it is not free"
        for block_id in sorted(free.keys() - counts.keys(), key=_number):
            yield f"block {block_id} of lane {lane_id}: it is in the free list, and has no row"
        if len(set(free.values())) != len(free):
            yield f"lane {lane_id}: two blocks have one place in the free list"

    def _places(self) -> Iterator[str]:
        """I7: who has not ended is in exactly one queue, of its own lane."""
        places: dict[str, list[str]] = {request_id: [] for request_id in self._requests}
        for request_id in self._rows.ranks.get(Key(Table.UNPLACED), {}):
            places.setdefault(request_id, []).append("unplaced")
        for lane_id in self._lanes:
            for table in QUEUES:
                for request_id in self._rows.ranks.get(Key(table, lane_id), {}):
                    places.setdefault(request_id, []).append(f"{table.value} of {lane_id}")
                    request = self._requests.get(request_id)
                    if request is not None and request.lane != lane_id:
                        lane = request.lane or "no lane"
                        yield f"request {request_id}: it is of {lane}, and queued on {lane_id}"
        for request_id, found in places.items():
            request = self._requests.get(request_id)
            shown = " and ".join(found)
            if request is None:
                yield f"request {request_id}: it is in {shown}, and has no row"
            elif request.is_finished and found:
                yield f"request {request_id}: it has ended, and is in {shown}"
            elif not request.is_finished and len(found) != 1:
                yield f"request {request_id}: {request.status.name}, and in {shown or 'no queue'}"

    def _ends(self) -> Iterator[str]:
        """Who has ended is in `finished`, from which it is removed one day; and nobody else."""
        ended = self._rows.ranks.get(Key(Table.FINISHED), {})
        for request_id, request in self._requests.items():
            if request.is_finished != (request_id in ended):
                word = "is not" if request.is_finished else "is"
                yield f"request {request_id}: {request.status.name}, and {word} in `finished`"
        for request_id in sorted(ended.keys() - self._requests.keys()):
            yield f"request {request_id}: it is in `finished`, and has no row"


def _ref_cnt(row: bytes) -> int | None:
    try:
        return int(row.split(b"|")[0])
    except ValueError:
        return None


def _number(block_id: str) -> int:
    """-1 sorts what is no number first, and is no block's."""
    return int(block_id) if block_id.isdigit() else -1
