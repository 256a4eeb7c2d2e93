"""OpenTelemetry's `gen_ai.server.*` histograms, pushed over OTLP to whoever is configured.

Only where the environment names a place for metrics: OTEL_EXPORTER_OTLP_METRICS_ENDPOINT, or
OTEL_METRICS_EXPORTER=otlp with the general endpoint (which alone may be a Jaeger, that takes no
metrics). The other OTEL_* variables mean what the SDK says. Knows nothing about calls. Invariant: a
dead collector costs no request anything; recording is an addition, and a thread exports.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence

from opentelemetry.metrics import Histogram
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import SERVICE_NAME, Resource

from segue.instruments import INSTRUMENTS
from segue.tracing import names
from segue.version import VERSION

log = logging.getLogger("segue.gateway")
SERVICE_VARIABLE, SERVICE = "OTEL_SERVICE_NAME", "segue-gateway"
SHUTDOWN_TIMEOUT_MS = 1000
ENDPOINT = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"

Attributes = dict[str, str]


class GenAiMeter:
    """Seconds of one choice, by what was asked for and how it ended."""

    def __init__(self, exporter: MetricExporter) -> None:
        resource = Resource.create({SERVICE_NAME: os.environ.get(SERVICE_VARIABLE, SERVICE)})
        reader = PeriodicExportingMetricReader(exporter)
        self._provider = MeterProvider([reader], resource)
        meter = self._provider.get_meter("segue", VERSION)
        rows = {row.name: row for row in INSTRUMENTS if row.is_otlp}

        def histogram(name: str) -> Histogram:
            row = rows[name]
            bounds: Sequence[float] = row.buckets
            return meter.create_histogram(
                name, "s", row.text, explicit_bucket_boundaries_advisory=bounds
            )

        self._duration = histogram("gen_ai.server.request.duration")
        self._first_token = histogram("gen_ai.server.time_to_first_token")
        self._per_token = histogram("gen_ai.server.time_per_output_token")
        self._attributes: dict[tuple[str, str, str], Attributes] = {}

    def first_token(self, kind: str, model: str, seconds: float) -> None:
        self._first_token.record(seconds, self._of(kind, model, ""))

    def ended(
        self, kind: str, model: str, duration_s: float, per_token_s: float, error: str
    ) -> None:
        """`per_token_s` 0: there was no second token."""
        self._duration.record(duration_s, self._of(kind, model, error))
        if per_token_s and not error:
            self._per_token.record(per_token_s, self._of(kind, model, ""))

    def close(self) -> None:
        """Exports what there is, if somebody takes it soon."""
        try:
            self._provider.shutdown(SHUTDOWN_TIMEOUT_MS)
        except Exception as error:  # noqa: BLE001 - whatever an exporter raises, we are leaving
            log.warning("the last metrics were not exported: %s", error)

    def _of(self, kind: str, model: str, error: str) -> Attributes:
        key = (kind, model, error)
        if key not in self._attributes:
            attributes = {
                names.GEN_AI_OPERATION_NAME: names.operation_name(kind),
                names.GEN_AI_PROVIDER_NAME: names.PROVIDER,
                names.GEN_AI_REQUEST_MODEL: model,
                names.GEN_AI_RESPONSE_MODEL: model,
            }
            self._attributes[key] = attributes | ({names.ERROR_TYPE: error} if error else {})
        return self._attributes[key]


def gen_ai_meter(environ: Mapping[str, str] = os.environ) -> GenAiMeter | None:
    """None where nobody wants these metrics."""
    chosen = environ.get("OTEL_METRICS_EXPORTER", "")
    is_asked = bool(environ.get(ENDPOINT)) or chosen == "otlp"
    if not is_asked or chosen == "none" or environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    protocol = environ.get("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL") or environ.get(
        "OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"
    )
    return GenAiMeter(_exporter(protocol))


def _exporter(protocol: str) -> MetricExporter:
    """Imported here: who wants no metrics does not wait for it at start."""
    if protocol.startswith("http"):
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import (
            OTLPMetricExporter as HttpExporter,
        )

        return HttpExporter()
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import (
        OTLPMetricExporter as GrpcExporter,
    )

    return GrpcExporter()
