"""One request's row of status and progress, as text that a person can read in redis-cli.

Knows nothing about where the row is kept. Invariant: `read_request_row(row)` gives back every field
that decides anything and is not a token, a block id or part of the submission.
Columns, separated by "|": docs/state.md, table `requests`.
"""

from __future__ import annotations

import json

from scheduler_svc.core.request import Request, RequestStatus
from segue.types import Finish, FinishReason, Usage


def write_request_row(request: Request) -> bytes:
    cached = "" if request.num_cached_tokens is None else request.num_cached_tokens
    finish = "" if request.finish is None else _write_finish(request.finish)
    spec = ",".join(map(str, request.spec_token_ids)) if request.spec_token_ids else ""
    extra = request.extra_state()
    return (
        f"{request.status.name}|{request.lane_id}|{request.owner}|{request.num_computed_tokens}|"
        f"{request.num_in_flight_tokens}|{request.num_output_placeholders}|"
        f"{request.num_stale_output_tokens}|{request.drop_stale_output:d}|"
        f"{request.is_prefill_chunk:d}|{request.num_preemptions}|{cached}|"
        f"{request.next_decode_eligible_step}|{request.num_lane_losses}|{request.is_deferred:d}|"
        f"{request.finished_at_ms}|{spec}|{json.dumps(extra) if extra else ''}|{finish}"
    ).encode()


def read_request_row(request: Request, row: bytes) -> None:
    """Set the fields of a request made from its submission to what the row says."""
    columns = row.decode().split("|", 17)
    request.status = RequestStatus[columns[0]]
    request.lane_id, request.owner = columns[1], columns[2]
    (
        request.num_computed_tokens,
        request.num_in_flight_tokens,
        request.num_output_placeholders,
        request.num_stale_output_tokens,
    ) = map(int, columns[3:7])
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
