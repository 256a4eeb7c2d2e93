"""What the store has of each request, and the rows of a delta for those that have changed.

Knows nothing about lanes' own rows. Invariant: after `add`, the store has the request as it is.
A decode step appends a token and changes nothing else that is stored: the journal tells, and it
costs one write.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from struct import Struct
from typing import Any

from scheduler_svc.core.engine_state import Codec
from scheduler_svc.core.journal import Journal
from scheduler_svc.core.request import QueueName, Request
from scheduler_svc.core.request_row import (
    ROW_PART,
    stored_values,
    write_request_row,
)
from scheduler_svc.core.rows import Delta, Key, Table

QUEUE_TABLES = {
    QueueName.WAITING: Table.LANE_WAITING,
    QueueName.HOLDING: Table.LANE_HOLDING,
    QueueName.RUNNING: Table.LANE_RUNNING,
    QueueName.SWAPPED: Table.LANE_SWAPPED,
}
BYTES_PER_TOKEN = 4
_pack_one = Struct("=i").pack


@dataclass(slots=True)
class RequestMark:
    """What the store has of a request, as far as a delta depends on it."""

    values: tuple[Any, ...] = ()
    queue_key: Key | None = None
    queue_rank: int = 0
    table_key: Key | None = None
    table: list[int] = field(default_factory=list[int])
    table_text: bytes = b""
    num_table_blocks: int = 0
    finished_at_ms: int | None = None


class RequestChanges:
    """`_stored_bytes`: how long the output is that the store has of each."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._marks: dict[str, RequestMark] = {}
        self._stored_bytes: dict[str, int] = {}

    def add(self, delta: Delta, requests: Iterable[Request], rewritten: Collection[str]) -> None:
        """All that the store does not have of these; `rewritten`: their output is another."""
        for request in requests:
            mark = self._marks.get(request.request_id)
            values = stored_values(request)
            if mark is None or rewritten or mark.values != values:
                mark = self._add_changed(delta, request, values, rewritten)
            elif len(request.block_ids) != mark.num_table_blocks:
                self._add_table(delta, request, mark)
            self._add_outputs(delta, request)

    def add_progress(self, delta: Delta, journal: Journal, requests: Mapping[str, Request]) -> None:
        """The same for those that have got a token, or are to get one, and nothing else.

        Where a token follows a token and a step follows a step, the token is all there is to store:
        that is found without a look at the request.
        """
        decoded, planned = journal.decoded, journal.planned
        if decoded.keys() == planned.keys():
            self._add_tokens(delta, decoded)
            return
        both = {i: token for i, token in decoded.items() if i in planned}
        self._add_tokens(delta, both)
        self.add(delta, [requests[i] for i in (*decoded, *planned) if i not in both], ())

    def _add_tokens(self, delta: Delta, tokens: Mapping[str, int]) -> None:
        outputs, stored_bytes = delta.outputs, self._stored_bytes
        for request_id, token in tokens.items():
            offset = stored_bytes[request_id]
            outputs[request_id] = (offset, _pack_one(token))
            stored_bytes[request_id] = offset + BYTES_PER_TOKEN

    def add_grown(self, delta: Delta, requests: Iterable[Request]) -> None:
        """The tables of requests that have got blocks."""
        for request in requests:
            self._add_table(delta, request, self._marks[request.request_id])

    def forget(self, delta: Delta, request_id: str) -> None:
        mark = self._marks.pop(request_id, None)
        if mark is None:  # came and went between two commits
            return
        del self._stored_bytes[request_id]
        delta.removed_fields.setdefault(Key(Table.SUBMISSIONS), []).append(request_id)
        delta.removed_fields.setdefault(Key(Table.REQUESTS), []).append(request_id)
        delta.removed_ranks.setdefault(Key(Table.FINISHED), []).append(request_id)
        delta.dropped.append(Key(Table.OUTPUTS, request_id))
        delta.dropped.append(Key(Table.LOGPROBS, request_id))

    def _add_changed(
        self,
        delta: Delta,
        request: Request,
        values: tuple[Any, ...],
        rewritten: Collection[str],
    ) -> RequestMark:
        request_id = request.request_id
        mark = self._marks.get(request_id)
        if mark is None:
            mark = RequestMark()
            self._stored_bytes[request_id] = 0
            self._marks[request_id] = mark
            body = self._codec.encode_submission(request.submission)
            delta.fields.setdefault(Key(Table.SUBMISSIONS), {})[request_id] = body
        if mark.values[ROW_PART] != values[ROW_PART]:
            row = write_request_row(request)
            delta.fields.setdefault(Key(Table.REQUESTS), {})[request_id] = row
        mark.values = values
        if request_id in rewritten:
            delta.dropped.append(Key(Table.OUTPUTS, request_id))
            delta.dropped.append(Key(Table.LOGPROBS, request_id))
            self._stored_bytes[request_id] = 0
        self._add_queue(delta, request, mark)
        self._add_table(delta, request, mark)
        finished_at_ms = request.finished_at_ms if request.is_finished else None
        if finished_at_ms != mark.finished_at_ms:
            mark.finished_at_ms = finished_at_ms
            if finished_at_ms is not None:
                delta.ranks.setdefault(Key(Table.FINISHED), {})[request_id] = finished_at_ms
            else:
                delta.removed_ranks.setdefault(Key(Table.FINISHED), []).append(request_id)
        return mark

    def _add_outputs(self, delta: Delta, request: Request) -> None:
        offset = self._stored_bytes[request.request_id]
        num_stored = offset // BYTES_PER_TOKEN
        num_new = request.num_output_tokens - num_stored
        assert num_new >= 0  # who is shorter than what is stored is among `rewritten`
        if not num_new:
            return
        data = array("i", request.last_token_ids(num_new)).tobytes()
        delta.outputs[request.request_id] = (offset, data)
        self._stored_bytes[request.request_id] = offset + len(data)
        if request.output_logprobs:
            self._add_logprobs(delta, request, num_stored)

    def _add_logprobs(self, delta: Delta, request: Request, start: int) -> None:
        encode = self._codec.encode_logprobs
        rows = enumerate(request.output_logprobs[start:], start)
        key = Key(Table.LOGPROBS, request.request_id)
        delta.fields[key] = {str(index): encode([logprobs]) for index, logprobs in rows}

    def _add_queue(self, delta: Delta, request: Request, mark: RequestMark) -> None:
        queue_key = None
        if request.queue is not None and request.lane_id:
            queue_key = Key(QUEUE_TABLES[request.queue], request.lane_id)
        if queue_key == mark.queue_key and (
            queue_key is None or request.queue_rank == mark.queue_rank
        ):
            return
        if mark.queue_key is not None and mark.queue_key != queue_key:
            delta.removed_ranks.setdefault(mark.queue_key, []).append(request.request_id)
        if queue_key is not None:
            delta.ranks.setdefault(queue_key, {})[request.request_id] = request.queue_rank
        mark.queue_key, mark.queue_rank = queue_key, request.queue_rank

    def _add_table(self, delta: Delta, request: Request, mark: RequestMark) -> None:
        """A table that grew is the text that is stored, and the new block ids."""
        block_ids = request.block_ids
        table_key = Key(Table.LANE_TABLES, request.lane_id) if block_ids else None
        has_grown = block_ids is mark.table
        if table_key == mark.table_key and has_grown and len(block_ids) == mark.num_table_blocks:
            return
        if mark.table_key is not None and mark.table_key != table_key:
            delta.removed_fields.setdefault(mark.table_key, []).append(request.request_id)
        if not has_grown or not mark.table_text:
            mark.table, mark.table_text = block_ids, b" ".join([b"%d" % i for i in block_ids])
        else:
            mark.table_text += b"".join([b" %d" % i for i in block_ids[mark.num_table_blocks :]])
        mark.num_table_blocks = len(block_ids)
        if table_key is not None:
            delta.fields.setdefault(table_key, {})[request.request_id] = mark.table_text
        mark.table_key = table_key
