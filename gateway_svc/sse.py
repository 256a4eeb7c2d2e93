"""Server-sent events, and the ids that let a client come back.

Knows nothing about what the events say. Invariant: an id names the call and, for each choice that
has begun, the tokens and characters sent, a digest of the ids up to there, and whether its end was
sent; nothing else is needed to go on.

`chatcmpl-1f…;0:12:40:9f86d081884c7d65;1:3:11:…:end` is such an id; `;usage` ends it where the
usage chunk was sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway_svc.cursor import DIGEST_LENGTH, END_MARK, Position, mark

DONE = b"data: [DONE]\n\n"
USAGE_MARK = "usage"


class EventIdError(ValueError):
    """Not an id that we gave."""


@dataclass(slots=True, frozen=True)
class EventId:
    call_id: str
    positions: Mapping[int, Position] = field(default_factory=dict[int, Position])
    is_usage_sent: bool = False

    def __str__(self) -> str:
        marks = [mark(index, position) for index, position in sorted(self.positions.items())]
        return event_id_text(self.call_id, marks, is_usage_sent=self.is_usage_sent)

    @classmethod
    def parse(cls, text: str) -> EventId:
        call_id, *parts = text.strip().split(";")
        is_usage_sent = bool(parts) and parts[-1] == USAGE_MARK
        if is_usage_sent:
            parts.pop()
        positions = dict(_parse_position(part) for part in parts)
        if not call_id or len(positions) != len(parts):
            raise EventIdError(f"{text[:200]!r} is not an event id of a stream")
        return cls(call_id, positions, is_usage_sent)


def event_id_text(call_id: str, marks: Iterable[str], *, is_usage_sent: bool = False) -> str:
    """`marks`: of each choice, in order; empty ones say nothing."""
    parts = [call_id, *filter(None, marks)]
    if is_usage_sent:
        parts.append(USAGE_MARK)
    return ";".join(parts)


def event(
    data: Mapping[str, Any] | str, event_id: EventId | str | None = None, name: str = ""
) -> bytes:
    """`data`: an object, or its JSON."""
    head = f"event: {name}\n" if name else ""
    if event_id is not None:
        head = f"{head}id: {event_id}\n"
    return f"{head}data: {data if isinstance(data, str) else to_json(data)}\n\n".encode()


def to_json(data: Mapping[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def _parse_position(part: str) -> tuple[int, Position]:
    fields = part.split(":")
    is_finished = fields[-1] == END_MARK
    if is_finished:
        fields.pop()
    try:
        index, num_tokens, num_chars = (_parse_count(text) for text in fields[:3])
    except ValueError as error:
        raise EventIdError(f"{part[:100]!r} is not a position") from error
    if len(fields) != 4 or len(fields[3]) != DIGEST_LENGTH:
        raise EventIdError(f"{part[:100]!r} is not a position")
    return index, Position(num_tokens, num_chars, fields[3], is_finished)


def _parse_count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 12):
        raise ValueError(text)
    return int(text)
