"""The gateways that are connected, and what each has been told.

Knows nothing about gRPC (it fills queues) or scheduling. Invariant: a session's cursor of a request
is set when the request is accepted on it, and moves only past rows that are committed (rule 1).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from scheduler_svc.core.engine_core import EngineCore
from scheduler_svc.core.events import Accepted, Detached, Rejected, Unknown
from scheduler_svc.core.request import Request
from segue.types import OutputColumns


@dataclass(slots=True, frozen=True)
class NewOutputs:
    """All that one commit brought for one gateway."""

    epoch: int
    commit_seq: int
    outputs: OutputColumns


@dataclass(slots=True, frozen=True)
class SessionReady:
    """The answer to a hello: due after the first commit of this leader."""

    epoch: int
    leader_id: str
    max_model_len: int = 0  # the longest that any lane can serve; 0: not known
    protocol_version: int = 0  # as the session's


@dataclass(slots=True, frozen=True)
class SignOfLife:
    epoch: int


SessionMessage = SessionReady | SignOfLife | Accepted | Unknown | Detached | Rejected | NewOutputs


@dataclass(slots=True, eq=False)
class GatewaySession:
    """One stream of one gateway. `cursors`: request id to the index of the next row to send.

    `protocol_version`: agreed on in the hello; 0 where nothing was said of it.
    """

    gateway_id: str
    session_id: str
    protocol_version: int = 0
    outgoing: asyncio.Queue[SessionMessage | None] = field(
        default_factory=asyncio.Queue[SessionMessage | None]
    )
    cursors: dict[str, int] = field(default_factory=dict[str, int])

    def tell(self, reply: Accepted | Unknown | Detached | Rejected) -> None:
        match reply:
            case Accepted():
                self.cursors[reply.request_id] = reply.next_index
            case Detached():
                self.cursors.pop(reply.request_id, None)
            case _:
                pass
        self.outgoing.put_nowait(reply)

    def end(self) -> None:
        self.outgoing.put_nowait(None)


class Sessions:
    """The current session of each gateway; a newer one ends the older (H17)."""

    def __init__(self) -> None:
        self._current: dict[str, GatewaySession] = {}

    def open(self, session: GatewaySession) -> None:
        older = self._current.get(session.gateway_id)
        if older is not None:
            older.end()
        self._current[session.gateway_id] = session

    def close(self, session: GatewaySession) -> None:
        if self._current.get(session.gateway_id) is session:
            del self._current[session.gateway_id]

    def is_current(self, session: GatewaySession) -> bool:
        return self._current.get(session.gateway_id) is session

    def current(self, gateway_id: str) -> GatewaySession | None:
        return self._current.get(gateway_id)

    def gateway_ids(self) -> set[str]:
        return set(self._current)

    def end_all(self) -> None:
        for session in self._current.values():
            session.end()
        self._current.clear()

    def emit(self, core: EngineCore, commit_seq: int) -> int:
        """Send each gateway the committed rows that it does not have; returns their number."""
        requests = core.state.requests
        touched: dict[str, list[Request]] = {}
        for request_id in core.take_touched():
            request = requests.get(request_id)
            if request is not None:
                touched.setdefault(request.owner, []).append(request)
        num_tokens = 0
        for gateway_id, its_requests in touched.items():
            session = self._current.get(gateway_id)
            if session is None:
                continue
            outputs = _take_outputs(session.cursors, its_requests)
            num_tokens += len(outputs.token_ids)
            if outputs.request_ids:
                session.outgoing.put_nowait(NewOutputs(core.state.epoch, commit_seq, outputs))
        return num_tokens


def _take_outputs(cursors: dict[str, int], requests: list[Request]) -> OutputColumns:
    """What these have behind their cursors, which move past it. One loop, for all are in it."""
    outputs = OutputColumns()
    request_ids, token_ids = outputs.request_ids, outputs.token_ids
    first_indices, counts, cached = (
        outputs.first_indices,
        outputs.num_tokens,
        outputs.num_cached_tokens,
    )
    for request in requests:
        request_id = request.request_id
        index = cursors.get(request_id)
        if index is None:
            continue
        finish = request.finish
        num_tokens = max(0, request.num_tokens - request.num_prompt_tokens - index)
        if finish is not None:
            outputs.finishes[len(request_ids)] = finish
            del cursors[request_id]
        elif num_tokens:
            cursors[request_id] = index + num_tokens
        else:
            continue
        if request.output_logprobs and num_tokens:
            outputs.logprobs[len(request_ids)] = tuple(request.output_logprobs[index:])
        request_ids.append(request_id)
        first_indices.append(index)
        counts.append(num_tokens)
        token_ids += request.last_token_ids(num_tokens)
        cached.append(request.num_cached_tokens or 0)
    return outputs
