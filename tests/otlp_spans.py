"""Spans as an OTLP receiver got them: one flat value each, and a store that tests can ask.

Knows OTLP's messages and nothing of Segue. Invariant: what came twice is kept twice, so a span that
was exported twice is seen.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

Attributes = dict[str, Any]


@dataclass(slots=True, frozen=True)
class SpanLink:
    trace_id: str
    span_id: str
    attributes: Attributes


@dataclass(slots=True, frozen=True)
class SpanEvent:
    name: str
    at_ns: int
    attributes: Attributes


@dataclass(slots=True, frozen=True)
class ReceivedSpan:
    """Ids in hex; `parent_id` empty: a root; `error` None: no error."""

    service: str
    instance: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: str
    start_ns: int
    end_ns: int
    attributes: Attributes
    resource: Attributes
    links: tuple[SpanLink, ...] = ()
    events: tuple[SpanEvent, ...] = ()
    num_dropped_links: int = 0
    error: str | None = None

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns

    def event_names(self) -> list[str]:
        return [event.name for event in self.events]


def spans_of(request: ExportTraceServiceRequest) -> Iterator[ReceivedSpan]:
    for resource_spans in request.resource_spans:
        resource = attributes_of(resource_spans.resource.attributes)
        for scope_spans in resource_spans.scope_spans:
            for span in scope_spans.spans:
                yield _span(span, resource)


def attributes_of(items: Iterable[KeyValue]) -> Attributes:
    return {item.key: _value(item.value) for item in items}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return attributes_of(value.kvlist_value.values)
    return getattr(value, kind)


def _span(span: Span, resource: Attributes) -> ReceivedSpan:
    is_error = span.status.code == Status.STATUS_CODE_ERROR
    return ReceivedSpan(
        service=str(resource.get("service.name", "")),
        instance=str(resource.get("service.instance.id", "")),
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        kind=Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        attributes=attributes_of(span.attributes),
        resource=resource,
        links=tuple(
            SpanLink(link.trace_id.hex(), link.span_id.hex(), attributes_of(link.attributes))
            for link in span.links
        ),
        events=tuple(
            SpanEvent(event.name, event.time_unix_nano, attributes_of(event.attributes))
            for event in span.events
        ),
        num_dropped_links=span.dropped_links_count,
        error=span.status.message if is_error else None,
    )


@dataclass(slots=True)
class SpanStore:
    """`max_spans`: the oldest go first. Filled by the servers' threads."""

    max_spans: int = 1_000_000
    num_batches: int = 0
    _spans: list[ReceivedSpan] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, request: ExportTraceServiceRequest) -> None:
        received = list(spans_of(request))
        with self._lock:
            self.num_batches += 1
            self._spans += received
            if len(self._spans) > self.max_spans:
                del self._spans[: len(self._spans) - self.max_spans]

    def all(self) -> list[ReceivedSpan]:
        with self._lock:
            return list(self._spans)

    def clear(self) -> None:
        with self._lock:
            self._spans.clear()

    def named(self, name: str) -> list[ReceivedSpan]:
        return [span for span in self.all() if span.name == name]

    def services(self) -> list[str]:
        return sorted({span.service for span in self.all()})

    def trace(self, trace_id: str) -> list[ReceivedSpan]:
        return [span for span in self.all() if span.trace_id == trace_id]

    def traces(self, service: str = "", operation: str = "") -> dict[str, list[ReceivedSpan]]:
        """All traces that have such a span, whole, the newest first."""
        traces: dict[str, list[ReceivedSpan]] = {}
        wanted: set[str] = set()
        for span in self.all():
            traces.setdefault(span.trace_id, []).append(span)
            if service in ("", span.service) and operation in ("", span.name):
                wanted.add(span.trace_id)
        found = [(trace_id, traces[trace_id]) for trace_id in traces if trace_id in wanted]
        return dict(sorted(found, key=lambda item: -min(span.start_ns for span in item[1])))
