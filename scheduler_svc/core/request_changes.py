"""What the store has of each request, and the rows of a delta for those that have changed.

Knows nothing about lanes' own rows. Invariant: after `add`, the store has the request as it is.
A decode step appends a token and changes nothing else that is stored: it is told by one comparison,
and costs one write.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from struct import Struct
from typing import Any

from scheduler_svc.core.engine_state import Codec
from scheduler_svc.core.request import QueueName, Request
from scheduler_svc.core.request_row import (
    ROW_PART,
    num_uncomputed_tokens,
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

    num_tokens: int  # of prompt and output
    values: tuple[Any, ...] = ()
    num_uncomputed: int = 0
    num_in_flight: int = 0
    num_placeholders: int = 0
    queue_key: Key | None = None
    queue_rank: int = 0
    table_key: Key | None = None
    table: list[int] = field(default_factory=list[int])
    table_text: bytes = b""
    num_table_blocks: int = 0
    finished_at_ms: int | None = None


class RequestChanges:
    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._marks: dict[str, RequestMark] = {}

    def add(self, delta: Delta, requests: Iterable[Request], rewritten: Collection[str]) -> None:
        """All that the store does not have of these; `rewritten`: their output is another."""
        for request in requests:
            mark = self._marks.get(request.request_id)
            values = stored_values(request)
            if mark is None or rewritten or mark.values != values:
                mark = self._add_changed(delta, request, values, rewritten)
            elif len(request.block_ids) != mark.num_table_blocks:
                self._add_table(delta, request, mark)
            if len(request.all_token_ids) != mark.num_tokens:
                self._add_outputs(delta, request, mark)

    def add_decoded(self, delta: Delta, requests: Iterable[Request]) -> None:
        """The same for requests that have progress and new tokens, and nothing else.

        Where a token follows a token and a step follows a step, the token is all there is to store.
        """
        marks, outputs = self._marks, delta.outputs
        others: list[Request] = []
        for request in requests:
            request_id = request.request_id
            mark = marks[request_id]
            num_tokens = len(request.all_token_ids)
            num_placeholders = request.num_output_placeholders
            if (
                num_tokens != mark.num_tokens + 1
                or num_placeholders != mark.num_placeholders
                or request.num_in_flight_tokens != mark.num_in_flight
                or num_tokens + num_placeholders - request.num_computed_tokens
                != mark.num_uncomputed
            ):
                others.append(request)
                continue
            offset = (num_tokens - 1 - request.num_prompt_tokens) * BYTES_PER_TOKEN
            outputs[request_id] = (offset, _pack_one(request.all_token_ids[-1]))
            mark.num_tokens = num_tokens
        self.add(delta, others, ())

    def add_grown(self, delta: Delta, requests: Iterable[Request]) -> None:
        """The tables of requests that have got blocks."""
        for request in requests:
            self._add_table(delta, request, self._marks[request.request_id])

    def forget(self, delta: Delta, request_id: str) -> None:
        mark = self._marks.pop(request_id, None)
        if mark is None:  # came and went between two commits
            return
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
            mark = RequestMark(request.num_prompt_tokens)
            self._marks[request_id] = mark
            body = self._codec.encode_submission(request.submission)
            delta.fields.setdefault(Key(Table.SUBMISSIONS), {})[request_id] = body
        if mark.values[ROW_PART] != values[ROW_PART]:
            row = write_request_row(request)
            delta.fields.setdefault(Key(Table.REQUESTS), {})[request_id] = row
        mark.values = values
        mark.num_uncomputed = num_uncomputed_tokens(request)
        mark.num_in_flight = request.num_in_flight_tokens
        mark.num_placeholders = request.num_output_placeholders
        if request_id in rewritten:
            delta.dropped.append(Key(Table.OUTPUTS, request_id))
            delta.dropped.append(Key(Table.LOGPROBS, request_id))
            mark.num_tokens = request.num_prompt_tokens
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

    def _add_outputs(self, delta: Delta, request: Request, mark: RequestMark) -> None:
        num_stored = mark.num_tokens - request.num_prompt_tokens
        tokens = array("i", request.all_token_ids[mark.num_tokens :])
        assert tokens  # who is shorter than what is stored is among `rewritten`
        delta.outputs[request.request_id] = (num_stored * BYTES_PER_TOKEN, tokens.tobytes())
        if request.output_logprobs:
            self._add_logprobs(delta, request, num_stored)
        mark.num_tokens += len(tokens)

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
