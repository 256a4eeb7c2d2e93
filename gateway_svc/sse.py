"""Server-sent events, and the ids that let a client come back.

Knows nothing about what the events say. Invariant: an id names the call and, for each choice that
has begun, the tokens and characters sent, a digest of the ids up to there, and whether its end was
sent; nothing else is needed to go on.

`chatcmpl-1f…;0:12:40:9f86d081884c7d65;1:3:11:…:end` is such an id; `;usage` ends it where the
usage chunk was sent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway_svc.cursor import DIGEST_LENGTH, Position

DONE = b"data: [DONE]\n\n"
USAGE_MARK = "usage"
END_MARK = "end"


class EventIdError(ValueError):
    """Not an id that we gave."""


@dataclass(slots=True, frozen=True)
class EventId:
    call_id: str
    positions: Mapping[int, Position] = field(default_factory=dict[int, Position])
    is_usage_sent: bool = False

    def __str__(self) -> str:
        parts = [self.call_id]
        parts += [
            _position_text(index, position)
            for index, position in sorted(self.positions.items())
            if position != Position()
        ]
        if self.is_usage_sent:
            parts.append(USAGE_MARK)
        return ";".join(parts)

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


def event(data: Mapping[str, Any], event_id: EventId | None = None, name: str = "") -> bytes:
    lines = [f"event: {name}"] if name else []
    if event_id is not None:
        lines.append(f"id: {event_id}")
    lines.append("data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")))
    return ("\n".join(lines) + "\n\n").encode()


def _position_text(index: int, position: Position) -> str:
    text = f"{index}:{position.num_tokens}:{position.num_chars}:{position.digest}"
    return f"{text}:{END_MARK}" if position.is_finished else text


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
