"""The exporters that can be asked for: OTLP over gRPC or HTTP, and the console.

Knows OpenTelemetry's exporters, which read their own variables; knows nothing about spans.
Invariant: a collector that is away is told once, and again when it is back, however many spans are
lost between.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SpanExporter, SpanExportResult

from segue.tracing.tracing_error import TracingError

log = logging.getLogger("segue.tracing")


class AnnouncingExporter(SpanExporter):
    """Another exporter, with a line in our log when spans begin and cease to be lost."""

    def __init__(self, exporter: SpanExporter, target: str) -> None:
        self._exporter = exporter
        self._target = target
        self._is_losing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        is_losing = result is not SpanExportResult.SUCCESS
        if is_losing and not self._is_losing:
            log.warning("spans are lost: %s does not take them", self._target)
        elif self._is_losing and not is_losing:
            log.warning("spans are taken again by %s", self._target)
        self._is_losing = is_losing
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


def make_exporter(name: str, protocol: str, target: str) -> SpanExporter:
    """`name`: otlp or console. OTLP's own variables are read by the exporter itself."""
    if name == "console":
        return ConsoleSpanExporter()
    log.info("traces go to %s by %s", target, protocol)
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OfGrpc

        return AnnouncingExporter(OfGrpc(), target)
    if protocol == "http/protobuf":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as OfHttp

        return AnnouncingExporter(OfHttp(), target)
    raise TracingError(
        f"OTEL_EXPORTER_OTLP_PROTOCOL: {protocol!r} is neither grpc nor http/protobuf"
    )
