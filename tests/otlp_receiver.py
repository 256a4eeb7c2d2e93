"""An OTLP receiver of our own: OTLP over gRPC and HTTP in, Jaeger's query API and a page out.

`python -m tests.otlp_receiver` stands in for Jaeger where none can be had: the same ports, and of
the API what our tests ask (`/api/services`, `/api/traces`, `/api/traces/<id>`). Spans are kept in
memory. Knows the protocol and nothing of Segue. Invariant: ports are bound when the object is made.
"""

from __future__ import annotations

import argparse
import gzip
import json
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from tests.otlp_pages import index_page, jaeger_answer, jaeger_trace, trace_page
from tests.otlp_spans import SpanStore

DEFAULT_LIMIT = 20
MAX_MESSAGE_BYTES = 64 << 20


class _TraceService(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self, store: SpanStore) -> None:
        self._store = store

    def Export(self, request: trace_service_pb2.ExportTraceServiceRequest, context: Any) -> Any:
        self._store.add(request)
        return trace_service_pb2.ExportTraceServiceResponse()


class _MetricsService(metrics_service_pb2_grpc.MetricsServiceServicer):
    """Taken and forgotten, so that whoever exports both has one endpoint."""

    def Export(self, request: Any, context: Any) -> Any:
        return metrics_service_pb2.ExportMetricsServiceResponse()


class OtlpReceiver:
    """Use as a context. `http_port` takes OTLP over HTTP and answers queries."""

    def __init__(
        self, host: str = "127.0.0.1", grpc_port: int = 0, http_ports: tuple[int, ...] = (0,)
    ) -> None:
        self.store = SpanStore()
        options = [("grpc.max_receive_message_length", MAX_MESSAGE_BYTES), ("grpc.so_reuseport", 0)]
        self._grpc = grpc.server(ThreadPoolExecutor(max_workers=4), options=options)
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(
            _TraceService(self.store), self._grpc
        )
        metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(_MetricsService(), self._grpc)
        self.grpc_port = self._grpc.add_insecure_port(f"{host}:{grpc_port}")
        if not self.grpc_port:
            raise OSError(f"port {grpc_port} of {host} can not be bound")
        handler = type("Handler", (_Handler,), {"store": self.store})
        self._https = [ThreadingHTTPServer((host, port), handler) for port in http_ports]
        self.http_port = self._https[0].server_address[1]
        self._threads = [threading.Thread(target=one.serve_forever) for one in self._https]

    def __enter__(self) -> OtlpReceiver:
        self._grpc.start()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._grpc.stop(0).wait()
        for server, thread in zip(self._https, self._threads, strict=True):
            server.shutdown()
            server.server_close()
            thread.join()

    @property
    def environ(self) -> dict[str, str]:
        """For whoever is to export to here, over gRPC."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.grpc_port}"}

    @property
    def http_environ(self) -> dict[str, str]:
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.http_port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        }


class _Handler(BaseHTTPRequestHandler):
    store: SpanStore

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        if self.path == "/v1/traces":
            self.store.add(trace_service_pb2.ExportTraceServiceRequest.FromString(body))
        elif self.path != "/v1/metrics":
            self._answer(b"not here", "text/plain", 404)
            return
        self._answer(b"", "application/x-protobuf")

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        path = parts.path.strip("/").split("/")
        match path:
            case ["api", "services"]:
                self._answer(jaeger_answer(list(self.store.services())))
            case ["api", "services", service, "operations"]:
                spans = self.store.all()
                found = sorted({span.name for span in spans if span.service == service})
                self._answer(jaeger_answer(list(found)))
            case ["api", "traces"]:
                self._answer_traces(query)
            case ["api", "traces", trace_id]:
                self._answer_trace(trace_id)
            case ["trace", trace_id]:
                self._answer(trace_page(trace_id, self.store.trace(trace_id)), "text/html")
            case [""] | ["search"]:
                traces = self.store.traces(query.get("service", ""), query.get("operation", ""))
                self._answer(index_page(traces, limit=200), "text/html")
            case _:
                self._answer(b"not here", "text/plain", 404)

    def _answer_traces(self, query: dict[str, str]) -> None:
        traces = self.store.traces(query.get("service", ""), query.get("operation", ""))
        limit = int(query.get("limit", DEFAULT_LIMIT))
        found = list(traces.items())[:limit]
        self._answer(jaeger_answer([jaeger_trace(key, spans) for key, spans in found]))

    def _answer_trace(self, trace_id: str) -> None:
        spans = self.store.trace(trace_id)
        if spans:
            self._answer(jaeger_answer([jaeger_trace(trace_id, spans)]))
            return
        errors = [{"code": 404, "msg": "trace not found"}]
        body = json.dumps({"data": None, "total": 0, "errors": errors}).encode()
        self._answer(body, status=404)

    def _answer(self, body: bytes, media_type: str = "application/json", status: int = 200) -> None:
        self.send_response(status)
        self.send_header("content-type", media_type)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--grpc-port", type=int, default=4317, help="OTLP over gRPC")
    parser.add_argument("--http-port", type=int, default=4318, help="OTLP over HTTP")
    parser.add_argument("--query-port", type=int, default=16686, help="the page and Jaeger's API")
    args = parser.parse_args()
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    ports = (args.http_port, args.query_port)
    with OtlpReceiver(args.host, args.grpc_port, ports) as receiver:
        print(
            f"OTLP on {receiver.grpc_port} (gRPC) and {args.http_port} (HTTP), "
            f"traces on http://{args.host}:{args.query_port}/",
            flush=True,
        )
        stopping.wait()


if __name__ == "__main__":
    main()
