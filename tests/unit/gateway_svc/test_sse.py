"""Event ids say where a client is; what is not ours is refused."""

from __future__ import annotations

import pytest

from gateway_svc.cursor import EMPTY_DIGEST, Position
from gateway_svc.sse import EventId, EventIdError, event

DIGEST = "0123456789abcdef"


@pytest.mark.parametrize(
    "event_id, text",
    [
        (EventId("cmpl-1"), "cmpl-1"),
        (EventId("cmpl-1", {0: Position(3, 4, DIGEST)}), f"cmpl-1;0:3:4:{DIGEST}"),
        (
            EventId("c", {1: Position(3, 4, DIGEST, True), 0: Position(0, 0)}, True),
            f"c;1:3:4:{DIGEST}:end;usage",
        ),
        (EventId("c", {0: Position(is_finished=True)}), f"c;0:0:0:{EMPTY_DIGEST}:end"),
    ],
)
def test_an_id_is_read_back(event_id: EventId, text: str) -> None:
    assert str(event_id) == text
    again = EventId.parse(text)
    assert str(again) == text
    assert again.is_usage_sent == event_id.is_usage_sent


@pytest.mark.parametrize(
    "text",
    [
        "",
        ";0:1:1:" + DIGEST,
        "c;0:1:1",
        "c;0:1:1:short",
        f"c;x:1:1:{DIGEST}",
        f"c;0:-1:1:{DIGEST}",
        f"c;0:1:1:{DIGEST}:finished",
        f"c;0:1:1:{DIGEST};0:2:2:{DIGEST}",
        f"c;usage;0:1:1:{DIGEST}",
        f"c;0:{'9' * 30}:1:{DIGEST}",
        f"c;0:٣:1:{DIGEST}",
    ],
)
def test_what_is_not_ours_is_refused(text: str) -> None:
    with pytest.raises(EventIdError):
        EventId.parse(text)


def test_an_event_is_one_block_of_lines() -> None:
    """Line breaks inside the text must not end the event."""
    block = event({"text": "a\n\nb\r漢"}, EventId("cmpl-1"))

    assert block == 'id: cmpl-1\ndata: {"text":"a\\n\\nb\\r漢"}\n\n'.encode()
