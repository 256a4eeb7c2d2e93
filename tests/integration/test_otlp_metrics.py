"""A gateway that serves calls pushes OpenTelemetry's GenAI metrics, in the real protocol."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1 import (
    metrics_service_pb2,
    metrics_service_pb2_grpc,
)

from segue.instruments import INSTRUMENTS
from segue.model_files.hand import write_hand_model
from segue.otlp_metrics import gen_ai_meter
from tests.running_gateway import serve_gateway, serve_stub
from tests.scheduler_stub import SchedulerStub

RECEIVE_TIMEOUT_S = 10.0
ROWS = {row.name: row for row in INSTRUMENTS if row.is_otlp}


class Collector(metrics_service_pb2_grpc.MetricsServiceServicer):
    """Keeps each export, whole."""

    def __init__(self) -> None:
        self.exports: queue.Queue[Any] = queue.Queue()

    def Export(self, request: Any, context: Any) -> Any:
        self.exports.put(request)
        return metrics_service_pb2.ExportMetricsServiceResponse()


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """Named in the environment; an export comes when a meter is closed."""
    servicer = Collector()
    server = grpc.server(ThreadPoolExecutor(max_workers=1))
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    address = f"http://127.0.0.1:{port}"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", address)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_INSECURE", "true")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "3600000")
    monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
    yield servicer
    server.stop(None)


def points(export: Any) -> dict[str, list[tuple[dict[str, str], Any]]]:
    """Metric name -> (attributes, histogram point)."""
    found: dict[str, list[tuple[dict[str, str], Any]]] = {}
    for resource in export.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                assert metric.unit == "s"
                for point in metric.histogram.data_points:
                    attributes = {a.key: a.value.string_value for a in point.attributes}
                    found.setdefault(metric.name, []).append((attributes, point))
    return found


@pytest.mark.timeout(30)
async def test_a_served_call_is_exported(collector: Collector, tmp_path: Path) -> None:
    write_hand_model(tmp_path / "hand")
    async with (
        serve_stub(SchedulerStub()) as address,
        serve_gateway(tmp_path / "hand", address) as running,
    ):
        await running.openai.completions.create(
            model="hand", prompt="a b c", max_tokens=5, extra_body={"ignore_eos": True}
        )
        running.gateway.client.metrics.close()
    export = collector.exports.get(timeout=RECEIVE_TIMEOUT_S)
    resource = {a.key: a.value.string_value for a in export.resource_metrics[0].resource.attributes}
    assert resource["service.name"] == "segue-gateway"
    found = points(export)
    assert set(found) == set(ROWS)
    for name, ((attributes, point),) in found.items():
        assert point.count == 1
        assert tuple(point.explicit_bounds) == ROWS[name].buckets
        assert set(attributes) == set(ROWS[name].labels) - {"error.type"}
        assert attributes["gen_ai.operation.name"] == "text_completion"
        assert attributes["gen_ai.request.model"] == "hand"


def test_an_end_that_is_no_answer_is_an_error(collector: Collector) -> None:
    meter = gen_ai_meter()
    assert meter is not None
    meter.ended("chat", "m", 1.0, 0.1, "abort")
    meter.close()
    found = points(collector.exports.get(timeout=RECEIVE_TIMEOUT_S))
    assert set(found) == {"gen_ai.server.request.duration"}
    ((attributes, _),) = found["gen_ai.server.request.duration"]
    assert attributes["error.type"] == "abort"


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://jaeger:4317"},
        {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c:4317", "OTEL_METRICS_EXPORTER": "none"},
        {"OTEL_METRICS_EXPORTER": "otlp", "OTEL_SDK_DISABLED": "true"},
    ],
)
def test_who_names_no_place_for_metrics_gets_none(environ: dict[str, str]) -> None:
    """A Jaeger takes no metrics, and would answer each export with an error."""
    assert gen_ai_meter(environ) is None
