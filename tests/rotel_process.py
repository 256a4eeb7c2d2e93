"""rotel, an OpenTelemetry collector in Rust, between our services and whoever looks at spans.

`make setup` installs it where there is a wheel; elsewhere `SEGUE_ROTEL_AGENT` says where a
`rotel-agent` is. Knows its command line; knows nothing about Segue. Invariant: it binds to
127.0.0.1, and nothing outlives `stop`.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
from pathlib import Path

from tests.served import stop_process, wait_until


def rotel_agent() -> str | None:
    if named := os.environ.get("SEGUE_ROTEL_AGENT"):
        return named
    spec = importlib.util.find_spec("rotel")
    if spec is None or spec.origin is None:
        return None
    return str(Path(spec.origin).parent / "rotel-agent")


class RotelProcess:
    """Takes OTLP over gRPC and HTTP on these ports, and forwards to `endpoint`."""

    def __init__(self, agent: str, directory: Path, ports: tuple[int, int], endpoint: str) -> None:
        self.grpc_port, self.http_port = ports
        self._log = directory / "rotel.log"
        command = [agent, "start", "--exporter", "otlp", "--otlp-exporter-endpoint", endpoint]
        command += ["--otlp-exporter-protocol", "grpc", "--pid-file", str(directory / "rotel.pid")]
        command += ["--otlp-grpc-endpoint", f"127.0.0.1:{self.grpc_port}"]
        command += ["--otlp-http-endpoint", f"127.0.0.1:{self.http_port}"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=directory)
        try:
            wait_until(self._listens, "rotel listens")
        except AssertionError:
            self.stop()
            raise AssertionError(self._log.read_text(errors="replace")) from None

    def _listens(self) -> bool:
        if self._process.poll() is not None:
            raise AssertionError("rotel has ended")
        with socket.socket() as one:
            one.settimeout(1.0)
            return one.connect_ex(("127.0.0.1", self.grpc_port)) == 0

    def stop(self) -> None:
        stop_process(self._process)
