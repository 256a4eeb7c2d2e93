"""W3C trace contexts as plain values, and the ids of a request's span.

Knows nothing about OpenTelemetry. Invariant: the id of a request's span follows from its
submission, which is in Redis; so whoever finishes the request exports the same span, and a link to
it can be made before it has ended, by a scheduler that may be killed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import blake2b

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1


@dataclass(slots=True, frozen=True)
class TraceContext:
    """One span's identity. `trace_state` is the header of that name, handed on as it came."""

    trace_id: int
    span_id: int
    is_sampled: bool = True
    is_remote: bool = False
    trace_state: str = ""

    def traceparent(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{'01' if self.is_sampled else '00'}"


def parse_traceparent(text: str) -> TraceContext | None:
    """None where it is no traceparent: the caller then has no parent, as W3C asks."""
    match = _TRACEPARENT.fullmatch(text.strip().lower())
    if match is None:
        return None
    version, trace_id, span_id, flags, rest = match.groups()
    if version == "ff" or (version == "00" and rest):
        return None
    if not (int(trace_id, 16) and int(span_id, 16)):
        return None
    is_sampled = bool(int(flags, 16) & _SAMPLED)
    return TraceContext(int(trace_id, 16), int(span_id, 16), is_sampled, is_remote=True)


def request_context(parent: TraceContext, request_id: str) -> TraceContext:
    """Of the scheduler's span of this request, whichever scheduler comes to export it."""
    span_id = derived_span_id(f"request {parent.trace_id:x} {request_id}")
    return TraceContext(parent.trace_id, span_id, parent.is_sampled)


def derived_span_id(seed: str) -> int:
    return int.from_bytes(blake2b(seed.encode(), digest_size=8).digest()) or 1
