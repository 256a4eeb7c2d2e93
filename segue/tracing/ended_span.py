"""A span that has ended, as whoever saw its end tells it.

Knows nothing about OpenTelemetry's SDK, so that it may be imported where nothing is traced.
Invariant: all of it is known when it is made; nothing is added later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from segue.tracing.trace_context import TraceContext

if TYPE_CHECKING:
    from opentelemetry.trace import Link as SpanLink

AttributeValue = str | bool | int | float | Sequence[str] | Sequence[int]
Attributes = Mapping[str, AttributeValue]


@dataclass(slots=True, frozen=True)
class SpanEvent:
    name: str
    at_ns: int
    attributes: Attributes = field(default_factory=dict[str, AttributeValue])


@dataclass(slots=True)
class EndedSpan:
    """`error`, where it is not empty, makes the span's status an error and says why."""

    name: str
    context: TraceContext
    parent: TraceContext | None
    start_ns: int
    end_ns: int
    attributes: Attributes = field(default_factory=dict[str, AttributeValue])
    links: Sequence[SpanLink] = ()  # made by `Tracer.link`
    events: Sequence[SpanEvent] = ()
    error: str = ""
    is_server: bool = False
