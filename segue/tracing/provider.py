"""Opens the tracer that the OTEL_* variables ask for, or none.

Knows the environment; imports the SDK only where there is something to export to. Invariant:
whatever a variable of OpenTelemetry's says holds; ours are only what stands where it says nothing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from segue.tracing import names
from segue.tracing.tracing_error import TracingError
from segue.version import VERSION

if TYPE_CHECKING:
    from segue.tracing.tracer import Tracer

# A kill loses the spans of this long, so it is short.
SCHEDULE_DELAY_MS = 500
MAX_QUEUE_SIZE = 8192
MAX_LINKS = 4096
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


def exporter_name(environ: Mapping[str, str]) -> str:
    """`otlp`, `console`, or empty where nothing is to be exported."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return ""
    name = environ.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if not name:
        return "otlp" if any(environ.get(variable) for variable in ENDPOINTS) else ""
    if name == "none":
        return ""
    if name not in ("otlp", "console"):
        raise TracingError(f"OTEL_TRACES_EXPORTER: {name!r} is not otlp, console or none")
    return name


def open_tracer(service: str, instance_id: str) -> Tracer | None:
    """None: nothing is traced, and nothing is to be called."""
    name = exporter_name(os.environ)
    if not name:
        return None
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import SpanLimits, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from segue.tracing.exporters import make_exporter
    from segue.tracing.steady_resource import SteadyResource
    from segue.tracing.tracer import Tracer

    # Their warnings come once for every try; ours are one line for each change.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    resource = SteadyResource(Resource.create(_resource_attributes(service, instance_id)))
    limits = SpanLimits(
        max_links=_unless_set("OTEL_SPAN_LINK_COUNT_LIMIT", MAX_LINKS),
        max_events=_unless_set("OTEL_SPAN_EVENT_COUNT_LIMIT", MAX_LINKS),
    )
    provider = TracerProvider(resource=resource, shutdown_on_exit=False, span_limits=limits)
    processor = BatchSpanProcessor(
        make_exporter(name, _first(PROTOCOLS) or "grpc", _target(name)),
        max_queue_size=_unless_set("OTEL_BSP_MAX_QUEUE_SIZE", MAX_QUEUE_SIZE),
        schedule_delay_millis=_unless_set("OTEL_BSP_SCHEDULE_DELAY", SCHEDULE_DELAY_MS),
    )
    return Tracer(provider, processor, limits)


def _resource_attributes(service: str, instance_id: str) -> dict[str, str]:
    """The service's own name only where nobody gave another: what is given here would win."""
    own = {names.SERVICE_VERSION: VERSION, names.SERVICE_INSTANCE_ID: instance_id}
    given = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    keys = {item.partition("=")[0].strip() for item in given.split(",")}
    if not os.environ.get("OTEL_SERVICE_NAME") and names.SERVICE_NAME not in keys:
        own[names.SERVICE_NAME] = service
    return {key: value for key, value in own.items() if key not in keys}


def _unless_set(variable: str, value: int) -> int | None:
    """None lets the SDK read the variable."""
    return None if os.environ.get(variable) else value


def _target(name: str) -> str:
    if name == "console":
        return "standard output"
    return _first(ENDPOINTS) or "the default OTLP endpoint of this machine"


def _first(variables: tuple[str, ...]) -> str:
    given = [os.environ[variable] for variable in variables if os.environ.get(variable)]
    return given[0] if given else ""
