"""A commit stores what has changed of a request, and for a decode that is one token."""

from __future__ import annotations

from scheduler_svc.core.journal import Journal
from scheduler_svc.core.request import QueueName, Request, RequestStatus
from scheduler_svc.core.request_changes import RequestChanges
from scheduler_svc.core.rows import Delta, Key, Table
from segue.wire import WireCodec
from tests.factories import make_request

REQUESTS, LANE = Key(Table.REQUESTS), "e0"
OUTPUTS, TABLES = Key(Table.OUTPUTS, "r"), Key(Table.LANE_TABLES, LANE)


def running(request_id: str = "r") -> Request:
    """Its prompt of four tokens is computed; the first step's token is on its way."""
    request = make_request(request_id, [1, 2, 3, 4])
    request.lane_id, request.owner = LANE, "g0"
    request.status, request.queue = RequestStatus.RUNNING, QueueName.RUNNING
    request.num_computed_tokens, request.num_in_flight_tokens = 4, 4
    request.num_output_placeholders = 1
    request.block_ids = [7, 8]
    return request


def decode(request: Request, token: int) -> None:
    """A token is taken, and the next one's step is planned."""
    request.append_output(token)
    request.num_computed_tokens += 1
    request.num_in_flight_tokens = 1


def stored(*requests: Request) -> RequestChanges:
    changes = RequestChanges(WireCodec())
    changes.add(Delta(), requests, ())
    return changes


def added(changes: RequestChanges, request: Request) -> Delta:
    """Whatever it is that has changed of it."""
    delta = Delta()
    changes.add(delta, [request], ())
    return delta


def progressed(
    changes: RequestChanges, *requests: Request, decoded: str = "", planned: str = ""
) -> Delta:
    """`decoded` and `planned`: ids of one letter; the token is the last that the request has."""
    by_id = {request.request_id: request for request in requests}
    journal = Journal(
        decoded={i: by_id[i].last_token_ids(1)[0] for i in decoded},
        planned=dict.fromkeys(planned, 1),
    )
    delta = Delta()
    changes.add_progress(delta, journal, by_id)
    return delta


def test_a_new_request_is_stored_whole() -> None:
    delta = Delta()
    RequestChanges(WireCodec()).add(delta, [running()], ())
    assert delta.fields[Key(Table.SUBMISSIONS)].keys() == {"r"}
    assert delta.fields[REQUESTS]["r"].startswith(b"RUNNING|e0|g0|1|4|1|")
    assert delta.fields[TABLES] == {"r": b"7 8"}
    assert delta.ranks == {Key(Table.LANE_RUNNING, LANE): {"r": 0}}


def test_a_decode_stores_its_token_and_nothing_else() -> None:
    request = running()
    changes = stored(request)
    decode(request, 5)
    added(changes, request)  # from a prefill's four tokens in flight to one
    decode(request, 258)
    delta = progressed(changes, request, decoded="r", planned="r")
    assert delta == Delta(outputs={"r": (4, b"\x02\x01\0\0")})


def test_who_was_decoded_or_planned_alone_is_looked_at_whole() -> None:
    """The token came, and no other is planned; and the other way round."""
    both, ended, begun = requests = [running("b"), running("e"), running("s")]
    changes = stored(*requests)
    decode(both, 5)
    ended.append_output(6)
    ended.num_in_flight_tokens = ended.num_output_placeholders = 0
    begun.num_computed_tokens, begun.num_in_flight_tokens = 5, 5
    delta = progressed(changes, *requests, decoded="be", planned="bs")
    assert delta.outputs == {"b": (0, b"\x05\0\0\0"), "e": (0, b"\x06\0\0\0")}
    assert delta.fields[REQUESTS].keys() == {"e", "s"}
    assert delta.fields[REQUESTS]["e"].startswith(b"RUNNING|e0|g0|1|0|0|")
    assert delta.fields[REQUESTS]["s"].startswith(b"RUNNING|e0|g0|0|5|1|")


def test_several_tokens_are_one_write_behind_those_stored() -> None:
    request = running()
    changes = stored(request)
    decode(request, 5)
    added(changes, request)
    decode(request, 6)
    decode(request, 7)
    assert added(changes, request).outputs == {"r": (4, b"\x06\0\0\0\x07\0\0\0")}
    decode(request, 8)
    delta = progressed(changes, request, decoded="r", planned="r")
    assert delta.outputs == {"r": (12, b"\x08\0\0\0")}


def test_a_table_that_grew_is_written_without_a_row() -> None:
    request = running()
    changes = stored(request)
    request.block_ids.append(11)
    delta = Delta()
    changes.add_grown(delta, [request])
    assert delta == Delta(fields={TABLES: {"r": b"7 8 11"}})
    assert added(changes, request) == Delta()


def test_a_table_that_was_given_back_and_taken_anew_is_another() -> None:
    """Of the same length, so that only its being another list tells."""
    request = running()
    changes = stored(request)
    request.block_ids = [3, 4]
    delta = Delta()
    changes.add(delta, [request], ())
    assert delta == Delta(fields={TABLES: {"r": b"3 4"}})


def test_a_table_that_is_gone_is_removed() -> None:
    request = running()
    changes = stored(request)
    request.block_ids = []
    delta = Delta()
    changes.add(delta, [request], ())
    assert delta == Delta(removed_fields={TABLES: ["r"]})


def test_output_that_is_another_replaces_what_is_stored() -> None:
    request = running()
    changes = stored(request)
    decode(request, 5)
    added(changes, request)
    request.set_output([9], [])
    delta = Delta()
    changes.add(delta, [request], {"r"})
    assert OUTPUTS in delta.dropped
    assert delta.outputs == {"r": (0, b"\x09\0\0\0")}


def test_a_forgotten_request_leaves_nothing() -> None:
    request = running()
    changes = stored(request)
    delta = Delta()
    changes.forget(delta, "r")
    changes.forget(delta, "never stored")
    assert delta.removed_fields == {Key(Table.SUBMISSIONS): ["r"], REQUESTS: ["r"]}
    assert OUTPUTS in delta.dropped
