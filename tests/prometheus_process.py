"""A real Prometheus with the repository's configuration, pointed at what a test has started.

Knows Prometheus' command line and its HTTP API; of Segue it knows the names of its jobs. Invariant:
nothing but targets differs from observability/prometheus.yml, and nothing outlives `stop`.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.observability_files import FOLDER, prometheus
from tests.served import stop_process, wait_until

STOP_TIMEOUT_S = 10.0
MISSING = None if shutil.which("prometheus") else "prometheus is not on the PATH"


class PrometheusProcess:
    def __init__(self, directory: Path, port: int, targets: Mapping[str, Sequence[str]]) -> None:
        """`targets`: host:port of each job; every job of the configuration needs some."""
        self.url = f"http://127.0.0.1:{port}"
        self._log = directory / "prometheus.log"
        shutil.copy(FOLDER / "alerts.yml", directory / "alerts.yml")
        (directory / "prometheus.yml").write_text(yaml.safe_dump(configuration(targets)))
        command = ["prometheus", f"--config.file={directory / 'prometheus.yml'}"]
        command += [f"--storage.tsdb.path={directory / 'data'}"]
        command += [f"--web.listen-address=127.0.0.1:{port}"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            wait_until(self._is_ready, "prometheus is ready")
        except AssertionError:
            self.stop()
            raise AssertionError(self._log.read_text(errors="replace")) from None

    def _is_ready(self) -> bool:
        if self._process.poll() is not None:
            raise AssertionError("prometheus has ended")
        try:
            return httpx.get(f"{self.url}/-/ready", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def api(self, path: str, **parameters: str) -> dict[str, Any]:
        """`data` of an answer; a query that can not be evaluated fails with what is wrong."""
        answer = httpx.get(f"{self.url}/api/v1/{path}", params=parameters, timeout=60).json()
        assert answer["status"] == "success", (parameters, answer["error"])
        return answer["data"]

    def values(self, expression: str) -> list[float]:
        """Of all series that an expression gives now."""
        found = self.api("query", query=expression)
        assert found["resultType"] == "vector", found
        return [float(series["value"][1]) for series in found["result"]]

    def stop(self) -> None:
        stop_process(self._process, STOP_TIMEOUT_S)


def configuration(targets: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    configured = prometheus()
    for job in configured["scrape_configs"]:
        job["static_configs"] = [{"targets": list(targets[job["job_name"]])}]
    return configured
