"""What a commit brings for each gateway: one message of columns, from its cursors on."""

from __future__ import annotations

import pytest

from scheduler_svc.core.events import Accepted
from scheduler_svc.core.request import Request
from scheduler_svc.sessions import GatewaySession, NewOutputs, Sessions
from segue.types import Finish, FinishReason, OutputColumns, TokenLogprobs, Usage
from tests.factories import make_request

LOGPROBS = (TokenLogprobs(-0.5), TokenLogprobs(-0.25), TokenLogprobs(-0.125))
FINISH = Finish(FinishReason.LENGTH, Usage(4, 3))


class Core:
    """What `emit` asks of the core."""

    def __init__(self, *requests: Request) -> None:
        self.requests = {request.request_id: request for request in requests}
        self.state = self
        self.epoch = 7

    def take_touched(self) -> list[str]:
        return [*self.requests, "expired"]


def of_gateway(owner: str, request_id: str, *tokens: int, logprobs: int = 0) -> Request:
    request = make_request(request_id)
    request.owner = owner
    request.set_output(tokens, LOGPROBS[:logprobs])
    return request


def accepted(session: GatewaySession, request_id: str, index: int) -> None:
    session.tell(Accepted(session.gateway_id, request_id, index))
    session.outgoing.get_nowait()


@pytest.fixture
def sessions() -> Sessions:
    sessions = Sessions()
    for gateway_id in ("g0", "g1"):
        sessions.open(GatewaySession(gateway_id, "s"))
    return sessions


def session_of(sessions: Sessions, gateway_id: str) -> GatewaySession:
    session = sessions.current(gateway_id)
    assert session is not None
    return session


def emitted(sessions: Sessions, gateway_id: str) -> OutputColumns:
    message = session_of(sessions, gateway_id).outgoing.get_nowait()
    assert isinstance(message, NewOutputs)
    return message.outputs


def test_each_gateway_gets_one_message_with_what_it_does_not_have(sessions: Sessions) -> None:
    core = Core(
        of_gateway("g0", "a", 11, 12, 13, logprobs=3),
        of_gateway("g1", "b", 21),
        of_gateway("g0", "c", 31, 32),
        of_gateway("g2", "d", 41),
    )
    accepted(session_of(sessions, "g0"), "a", 1)
    accepted(session_of(sessions, "g0"), "c", 0)
    accepted(session_of(sessions, "g1"), "b", 0)
    assert sessions.emit(core, 99) == 5  # type: ignore[arg-type]
    outputs = emitted(sessions, "g0")
    assert outputs.request_ids == ["a", "c"]
    assert outputs.first_indices == [1, 0]
    assert outputs.num_tokens == [2, 2]
    assert outputs.token_ids == [12, 13, 31, 32]
    assert outputs.logprobs == {0: LOGPROBS[1:]}
    assert emitted(sessions, "g1").token_ids == [21]
    assert session_of(sessions, "g0").cursors == {"a": 3, "c": 2}


def test_nothing_new_is_no_message(sessions: Sessions) -> None:
    """A request is touched by a commit that brings its gateway nothing, or is not its any more."""
    core = Core(of_gateway("g0", "a", 11), of_gateway("g0", "b", 21))
    accepted(session_of(sessions, "g0"), "a", 1)
    assert sessions.emit(core, 99) == 0  # type: ignore[arg-type]
    assert session_of(sessions, "g0").outgoing.empty()


def test_an_end_is_told_once_even_without_a_token(sessions: Sessions) -> None:
    request = of_gateway("g0", "a", 11, 12, 13)
    request.set_finished(FINISH, 1)
    accepted(session_of(sessions, "g0"), "a", 3)
    core = Core(request)
    sessions.emit(core, 99)  # type: ignore[arg-type]
    outputs = emitted(sessions, "g0")
    assert (outputs.num_tokens, outputs.token_ids) == ([0], [])
    assert outputs.finishes == {0: FINISH}
    sessions.emit(core, 100)  # type: ignore[arg-type]
    assert session_of(sessions, "g0").outgoing.empty()
