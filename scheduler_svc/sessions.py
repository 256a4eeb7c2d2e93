"""The gateways that are connected, and what each has been told.

Knows nothing about gRPC (it fills queues) or scheduling. Invariant: a session's cursor of a request
is set when the request is accepted on it, and moves only past rows that are committed (rule 1).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from scheduler_svc.core.engine_core import EngineCore
from scheduler_svc.core.events import Accepted, Detached, Rejected, Unknown
from segue.types import RequestOutput


@dataclass(slots=True, frozen=True)
class NewOutputs:
    """All that one commit brought for one gateway."""

    epoch: int
    commit_seq: int
    outputs: list[RequestOutput]


@dataclass(slots=True, frozen=True)
class SessionReady:
    """The answer to a hello: due after the first commit of this leader."""

    epoch: int
    leader_id: str


@dataclass(slots=True, frozen=True)
class SignOfLife:
    epoch: int


SessionMessage = SessionReady | SignOfLife | Accepted | Unknown | Detached | Rejected | NewOutputs


@dataclass(slots=True, eq=False)
class GatewaySession:
    """One stream of one gateway. `cursors`: request id to the index of the next row to send."""

    gateway_id: str
    session_id: str
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
        outputs: dict[str, list[RequestOutput]] = {}
        for request_id in core.take_touched():
            owner = core.owner_of(request_id)
            session = self._current.get(owner) if owner is not None else None
            if session is None or request_id not in session.cursors:
                continue
            index = session.cursors[request_id]
            output = core.output_since(request_id, index)
            if output is None or not (output.new_token_ids or output.finish):
                continue
            if output.finish is not None:
                del session.cursors[request_id]
            else:
                session.cursors[request_id] = index + len(output.new_token_ids)
            outputs.setdefault(session.gateway_id, []).append(output)
        for gateway_id, batch in outputs.items():
            message = NewOutputs(core.state.epoch, commit_seq, batch)
            self._current[gateway_id].outgoing.put_nowait(message)
        return sum(len(o.new_token_ids) for batch in outputs.values() for o in batch)
