"""One request's row of status and progress, as text that a person can read in redis-cli.

Knows nothing about where the row is kept. Invariant: `read_request_row(row)` gives back every field
that decides anything and is not a token, a block id or part of the submission; equal
`stored_values` mean equal rows. Columns, separated by "|": docs/state.md, table `requests`.
Progress is written as what is still to be computed, which a decode step leaves as it was: so most
requests of a step need no new row.
"""

from __future__ import annotations

import json
from typing import Any

from scheduler_svc.core.request import Request, RequestStatus
from segue.types import Finish, FinishReason, Usage

ROW_PART = slice(0, -3)  # of `stored_values`: what is in the row, and not where the request stands


def num_uncomputed_tokens(request: Request) -> int:
    """Of the tokens known and those on their way. The KV of the others is there, or planned."""
    num_known = request.num_tokens + request.num_output_placeholders
    return num_known - request.num_computed_tokens


def stored_values(request: Request) -> tuple[Any, ...]:
    """All that its row, its queue's and its block table's depend on: cheap to make and compare.

    Lists stand here as they are: drafts are replaced; a block table is replaced, or it grows, which
    does not show here.
    """
    return (
        request.status,
        request.lane_id,
        request.owner,
        request.num_tokens + request.num_output_placeholders - request.num_computed_tokens,
        request.num_in_flight_tokens,
        request.num_output_placeholders,
        request.num_stale_output_tokens,
        request.drop_stale_output,
        request.is_prefill_chunk,
        request.num_preemptions,
        request.num_cached_tokens,
        request.next_decode_eligible_step,
        request.num_lane_losses,
        request.is_deferred,
        request.finished_at_ms,
        request.spec_token_ids,
        request.drains_elsewhere,
        request.is_loading,
        request.is_load_finished,
        request.grammar_state,
        request.finish,
        request.queue,
        request.queue_rank,
        request.block_ids,
    )


def write_request_row(request: Request) -> bytes:
    cached = "" if request.num_cached_tokens is None else request.num_cached_tokens
    finish = "" if request.finish is None else _write_finish(request.finish)
    spec = ",".join(map(str, request.spec_token_ids)) if request.spec_token_ids else ""
    extra = request.extra_state()
    return (
        f"{request.status.name}|{request.lane_id}|{request.owner}|"
        f"{num_uncomputed_tokens(request)}|"
        f"{request.num_in_flight_tokens}|{request.num_output_placeholders}|"
        f"{request.num_stale_output_tokens}|{request.drop_stale_output:d}|"
        f"{request.is_prefill_chunk:d}|{request.num_preemptions}|{cached}|"
        f"{request.next_decode_eligible_step}|{request.num_lane_losses}|{request.is_deferred:d}|"
        f"{request.finished_at_ms}|{spec}|{json.dumps(extra) if extra else ''}|{finish}"
    ).encode()


def read_request_row(request: Request, row: bytes) -> None:
    """Set the fields of a request made from its submission and output to what the row says."""
    columns = row.decode().split("|", 17)
    request.status = RequestStatus[columns[0]]
    request.lane_id, request.owner = columns[1], columns[2]
    (
        num_uncomputed,
        request.num_in_flight_tokens,
        request.num_output_placeholders,
        request.num_stale_output_tokens,
    ) = map(int, columns[3:7])
    num_known = request.num_tokens + request.num_output_placeholders
    request.num_computed_tokens = num_known - num_uncomputed
    request.drop_stale_output = columns[7] == "1"
    request.is_prefill_chunk = columns[8] == "1"
    request.num_preemptions = int(columns[9])
    request.num_cached_tokens = int(columns[10]) if columns[10] else None
    request.next_decode_eligible_step = int(columns[11])
    request.num_lane_losses = int(columns[12])
    request.is_deferred = columns[13] == "1"
    request.finished_at_ms = int(columns[14])
    request.spec_token_ids = [int(token) for token in columns[15].split(",") if token]
    if columns[16]:
        request.restore_extra_state(json.loads(columns[16]))
    request.finish = _read_finish(columns[17]) if columns[17] else None


def _write_finish(finish: Finish) -> str:
    usage = finish.usage
    return json.dumps(
        {
            "reason": finish.reason.value,
            "stop_reason": finish.stop_reason,
            "message": finish.message,
            "usage": [usage.num_prompt_tokens, usage.num_output_tokens, usage.num_cached_tokens],
        }
    )


def _read_finish(text: str) -> Finish:
    value = json.loads(text)
    usage = Usage(*value["usage"])
    return Finish(FinishReason(value["reason"]), usage, value["stop_reason"], value["message"])
