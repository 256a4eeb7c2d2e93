"""`python -m segue serve` as a user starts it, on free ports, for tests that need all processes.

Knows serve.json and command lines; imports no service. Invariant: what was started is stopped, by
the pid that was started.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
START_TIMEOUT_S = 100.0
STOP_TIMEOUT_S = 20.0
POLL_S = 0.05
# Prometheus asks for more than one format, and what answers chooses.
AS_PROMETHEUS = {
    "Accept": "application/openmetrics-text;version=1.0.0,application/openmetrics-text;"
    "version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
}
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # several of them share a machine


def wait_until(read: Callable[[], T], what: str, timeout_s: float = 30.0) -> T:
    """The first true value that `read` gives; fails with `what` where none comes in time."""
    deadline = time.monotonic() + timeout_s
    while not (value := read()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {timeout_s} s")
        time.sleep(POLL_S)
    return value


def child_with(parent: int, argument: str) -> int:
    """The pid of the child whose command line has this argument."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    for child in children:
        if argument in Path(f"/proc/{child}/cmdline").read_bytes().decode().split("\0"):
            return int(child)
    raise AssertionError(f"no child of {parent} has {argument}")


def stop_process(process: subprocess.Popen[Any], timeout_s: float = STOP_TIMEOUT_S) -> None:
    """SIGTERM, and SIGKILL where that is not enough; returns when it has ended."""
    process.terminate()
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Served:
    """One running `segue serve`."""

    def __init__(
        self,
        model: Path,
        state_dir: Path,
        flags: Sequence[str] = (),
        environ: Mapping[str, str] = ONE_THREAD,
    ) -> None:
        self.state_dir = state_dir
        self.log_path = state_dir.parent / f"{state_dir.name}.log"
        command = [sys.executable, "-m", "segue", "serve", "--model", str(model), "--port", "0"]
        command += ["--state-dir", str(state_dir), *flags]
        environ = {**os.environ, "PYTHONUNBUFFERED": "1", **environ}
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environ)
        try:
            wait_until(self._is_ready, "segue serve is ready", START_TIMEOUT_S)
        except AssertionError:
            self.stop()
            raise AssertionError(self.log()) from None

    def _is_ready(self) -> bool:
        if self.process.poll() is not None:
            raise AssertionError(f"segue serve ended with {self.process.returncode}")
        try:
            return self._all_have_joined()
        except (OSError, ValueError, KeyError):
            return False

    def _all_have_joined(self) -> bool:
        """Serving begins with the first executor; a test that asked for two counts on both."""
        urls = [self.url, *self.gateway_urls()]
        if any(status_of(f"{url}/ready") != 200 for url in urls):
            return False
        names = [process["name"] for process in self.record()["processes"]]
        schedulers = [name for name in names if name.startswith("scheduler")]
        pages = "".join(self.metrics_page(name) for name in schedulers)
        num_executors = sum(name.startswith("executor") for name in names)
        return pages.count("\nsegue:steps_in_flight{") >= num_executors

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def record(self) -> dict[str, Any]:
        return json.loads((self.state_dir / "serve.json").read_text())

    @property
    def url(self) -> str:
        return self.record()["url"]

    @property
    def model(self) -> str:
        return self.record()["model"]

    def gateway_urls(self) -> list[str]:
        ports = [p["port"] for p in self.record()["processes"] if p["name"].startswith("gateway")]
        return [f"http://127.0.0.1:{port}" for port in ports]

    def pid(self, name: str) -> int:
        """Of a child, for example `scheduler-0`."""
        for process in self.record()["processes"]:
            if process["name"] == name:
                return process["identity"]["pid"]
        raise KeyError(name)

    def kill(self, name: str) -> int:
        """SIGKILL; returns the pid that was killed."""
        pid = self.pid(name)
        os.kill(pid, signal.SIGKILL)
        return pid

    def wait_restarted(self, name: str, old_pid: int) -> int:
        """The pid of the child that was started in the place of `old_pid`."""

        def new_pid() -> int:
            pid = self.pid(name)
            return pid if pid != old_pid and Path(f"/proc/{pid}").exists() else 0

        return wait_until(new_pid, f"{name} is started again")

    def get_status(self, path: str) -> int:
        return status_of(self.url + path)

    def metrics_url(self, name: str) -> str:
        """Of any service."""
        if name.startswith("gateway"):
            return f"{self.gateway_urls()[int(name.partition('-')[2])]}/metrics"
        command = Path(f"/proc/{self.pid(name)}/cmdline").read_bytes().decode().split("\0")
        return f"http://127.0.0.1:{command[command.index('--metrics-port') + 1]}/metrics"

    def metrics(self, name: str) -> dict[str, float]:
        """All samples of a service's /metrics, by name, labels summed."""
        return parse_metrics(self.metrics_page(name))

    def metrics_page(self, name: str) -> str:
        request = urllib.request.Request(self.metrics_url(name), headers=AS_PROMETHEUS)
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.read().decode()

    def redis(self, *command: str) -> Any:
        """One command on the embedded Redis."""
        from redis import Redis

        with Redis.from_url(self.record()["redis_url"]) as client:
            return client.execute_command(*command)

    def stop(self) -> None:
        stop_process(self.process)


def status_of(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=30) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code


def parse_metrics(text: str) -> dict[str, float]:
    samples: dict[str, float] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            name = name.partition("{")[0]
            samples[name] = samples.get(name, 0.0) + float(value)
    return samples
