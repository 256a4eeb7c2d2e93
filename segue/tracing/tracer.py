"""Exports spans that have ended, with ids and times that their owner chose.

A span of ours may be begun by one process and ended by another, so nothing is opened here: whoever
sees an end tells the whole span. That is also the cheapest way: one object, and no lock but the
queue's. Knows OpenTelemetry's SDK; knows nothing about what the spans say. Invariant: `record`
never blocks and never raises for want of a collector; what does not fit the queue is dropped.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TypeVar

from opentelemetry.propagate import extract
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.util import BoundedList
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    Link,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    get_current_span,
)

from segue.tracing import names
from segue.tracing.ended_span import Attributes, EndedSpan, SpanEvent
from segue.tracing.trace_context import TraceContext
from segue.version import VERSION

T = TypeVar("T")

_SCOPE = InstrumentationScope("segue", VERSION, names.SCHEMA_URL)
_UNSET = Status(StatusCode.UNSET)
CLOSE_TIMEOUT_S = 1.0  # for spans not yet exported when a service stops


class Tracer:
    def __init__(
        self, provider: TracerProvider, processor: SpanProcessor, limits: SpanLimits
    ) -> None:
        self._provider = provider
        self._processor = processor
        self._max_links = limits.max_links
        self._max_events = limits.max_events

    def child_of(self, parent: TraceContext) -> TraceContext:
        """A new identity in the same trace."""
        span_id = self._provider.id_generator.generate_span_id()
        return TraceContext(
            parent.trace_id, span_id, parent.is_sampled, trace_state=parent.trace_state
        )

    def server_contexts(
        self, headers: Mapping[str, str], name: str
    ) -> tuple[TraceContext | None, TraceContext]:
        """The client's context, if it sent one, and that of our span; the sampler has been asked.

        The formats of OTEL_PROPAGATORS are read; W3C's, if nothing is said.
        """
        context = extract(headers)
        remote = get_current_span(context).get_span_context()
        parent: TraceContext | None = None
        trace_id = self._provider.id_generator.generate_trace_id()
        if remote.is_valid:
            trace_id = remote.trace_id
            parent = TraceContext(
                remote.trace_id,
                remote.span_id,
                remote.trace_flags.sampled,
                is_remote=True,
                trace_state=remote.trace_state.to_header(),
            )
        result = self._provider.sampler.should_sample(context, trace_id, name, SpanKind.SERVER)
        ours = TraceContext(
            trace_id,
            self._provider.id_generator.generate_span_id(),
            result.decision.is_sampled(),
            trace_state=result.trace_state.to_header() if result.trace_state else "",
        )
        return parent, ours

    def link(self, context: TraceContext, attributes: Attributes | None = None) -> Link:
        return Link(_span_context(context), attributes)

    def link_saying(self, link: Link, attributes: Attributes) -> Link:
        """The same link with attributes; cheaper than a new one."""
        return Link(link.context, attributes)

    def record(self, span: EndedSpan) -> None:
        """Hand the span to the export queue; nothing happens to one that is not sampled."""
        if not span.context.is_sampled:
            return
        links = _bounded(span.links, self._max_links)
        self._processor.on_end(
            ReadableSpan(
                span.name,
                _span_context(span.context),
                _span_context(span.parent) if span.parent is not None else None,
                self._provider.resource,
                span.attributes,
                self._events(span.events),
                links,
                SpanKind.SERVER if span.is_server else SpanKind.INTERNAL,
                status=Status(StatusCode.ERROR, span.error) if span.error else _UNSET,
                start_time=span.start_ns,
                end_time=max(span.start_ns, span.end_ns),
                instrumentation_scope=_SCOPE,
            )
        )

    def _events(self, events: Sequence[SpanEvent]) -> Sequence[Event]:
        if not events:
            return ()
        made = [Event(event.name, event.attributes, event.at_ns) for event in events]
        return _bounded(made, self._max_events)

    def flush(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Whether all that was recorded has been handed over, or given up, within the time."""
        thread = threading.Thread(target=self._processor.force_flush, daemon=True)
        thread.start()
        thread.join(timeout_s)
        return not thread.is_alive()

    def close(self) -> None:
        """Exports what there is; a collector that does not answer holds a service up no longer."""
        if self.flush():
            thread = threading.Thread(target=self._processor.shutdown, daemon=True)
            thread.start()
            thread.join(CLOSE_TIMEOUT_S)


def _bounded(items: Sequence[T], limit: int | None) -> Sequence[T]:
    """The last of them, and the SDK's count of the rest."""
    if limit is None or len(items) <= limit:
        return items
    bounded: BoundedList[T] = BoundedList(limit)
    bounded.extend(items)
    return bounded


def _span_context(context: TraceContext) -> SpanContext:
    return SpanContext(
        context.trace_id,
        context.span_id,
        context.is_remote,
        TraceFlags(TraceFlags.SAMPLED if context.is_sampled else TraceFlags.DEFAULT),
        TraceState.from_header([context.trace_state]) if context.trace_state else None,
    )
