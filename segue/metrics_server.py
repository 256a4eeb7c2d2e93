"""A port with /metrics on a thread of its own, in the one format that keeps our names.

Not prometheus_client's server: asked as a real Prometheus asks (for OpenMetrics first), its 0.26
writes `segue_epoch` for `segue:epoch`, and no query of anybody finds it. Knows nothing about what
is on the page. Invariant: the names on the page are those of the registry, whoever asks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

READ_TIMEOUT_S = 10.0


class _Handler(BaseHTTPRequestHandler):
    timeout = READ_TIMEOUT_S
    registry: CollectorRegistry

    def do_GET(self) -> None:
        if self.path.partition("?")[0] not in ("/", "/metrics"):
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        page = generate_latest(self.registry)
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", CONTENT_TYPE_PLAIN_0_0_4)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, format: str, *args: object) -> None:
        """A scrape is no news."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Who hangs up in the middle of a page is no fault of ours."""


def serve_page(collector: Collector, host: str, port: int) -> Callable[[], None]:
    """Raises OSError where the address can not be had; what is returned stops it."""
    registry = CollectorRegistry()
    registry.register(collector)
    handler = type("Handler", (_Handler,), {"registry": registry})
    server = _Server((host, port), handler)
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop
