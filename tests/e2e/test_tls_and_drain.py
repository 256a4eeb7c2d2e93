"""The services as a cluster runs them: one by one, mutual TLS on every wire, stopped by SIGTERM.

`segue serve` is not used: it speaks on the loopback address only, and needs none of this.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from segue.grpc_server import EXECUTOR_SERVICE, SCHEDULER_SERVICE
from segue.grpc_tls import EXECUTOR_NAME, SCHEDULER_NAME, TlsFiles
from segue.serve_plan import free_ports
from tests.certificates import Authority
from tests.redis_process import redis_binary
from tests.served import stop_process, wait_until

NUM_TOKENS = 120
PROMPT = "go on"


def undisturbed() -> list[int]:
    tokens = list(PROMPT.encode())
    for _ in range(NUM_TOKENS):
        tokens.append(sum((p + 1) * t for p, t in enumerate(tokens)) % 256)
    return tokens[len(PROMPT) :]


class Cluster:
    """Redis, a scheduler, two executors and a gateway, each with a certificate of its own."""

    def __init__(self, directory: Path, model: Path) -> None:
        self.authority = Authority(directory / "tls")
        self._directory = directory
        self._model = model
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.redis_port, self.scheduler_port, self.http_port, *rest = free_ports(9)
        self.executor_ports, self.health_ports = rest[:2], rest[2:]

    def start(self) -> None:
        self._redis()
        health = [f"127.0.0.1:{port}" for port in self.health_ports]
        self.start_scheduler()
        for i, port in enumerate(self.executor_ports):
            self._service(
                *(f"executor-{i}", "executor_svc", self.authority.issue(EXECUTOR_NAME)),
                *("--listen", f"127.0.0.1:{port}", "--executor-id", f"executor-{i}"),
                *("--model", str(self._model), "--num-blocks", "64", "--num-threads", "1"),
                *("--schedulers", self.scheduler, "--health-listen", health[i]),
                *("--fault-step-delay-ms", "15"),
            )
        self._service(
            *("gateway", "gateway_svc", self.authority.issue("segue-gateway")),
            *("--port", str(self.http_port), "--model", str(self._model)),
            *("--schedulers", self.scheduler),
        )

    def start_scheduler(self, *flags: str) -> None:
        """Also in the place of one that has ended."""
        self._service(
            *("scheduler", "scheduler_svc", self.authority.issue(SCHEDULER_NAME)),
            *("--listen", f"127.0.0.1:{self.scheduler_port}", "--redis-url", self._redis_url()),
            *("--no-has-peers", "--health-listen", f"127.0.0.1:{self.health_ports[2]}", *flags),
        )

    @property
    def scheduler(self) -> str:
        return f"127.0.0.1:{self.scheduler_port}"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    def _redis_url(self) -> str:
        own = self.authority.issue("redis-client")
        files = f"ssl_certfile={own.cert}&ssl_keyfile={own.key}&ssl_ca_certs={own.ca}"
        return f"rediss://127.0.0.1:{self.redis_port}/0?{files}"

    def _redis(self) -> None:
        binary = redis_binary()
        if binary is None:
            pytest.skip("no redis-server here; the embedded one has no TLS")
        tls = self.authority.issue("segue-redis")
        files = ("--tls-cert-file", str(tls.cert), "--tls-key-file", str(tls.key))
        ports = ("--port", "0", "--bind", "127.0.0.1", "--tls-port", str(self.redis_port))
        self._start(
            *("redis", binary, *ports, *files, "--tls-ca-cert-file", str(tls.ca)),
            *("--dir", str(self._directory), "--appendonly", "yes"),
        )

    def _service(self, name: str, module: str, tls: TlsFiles, *flags: str) -> None:
        files = ("--tls-cert", str(tls.cert), "--tls-key", str(tls.key), "--tls-ca", str(tls.ca))
        self._start(name, sys.executable, "-m", module, *files, *flags)

    def _start(self, name: str, *command: str) -> None:
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
        with self.log_path(name).open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environ)
        self.processes[name] = process

    def log_path(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    def is_ready(self) -> bool:
        for name, process in self.processes.items():
            assert process.poll() is None, f"{name}: {self.log_path(name).read_text()}"
        try:
            with urllib.request.urlopen(f"{self.url}/ready", timeout=30):
                return self.ctl("status", "--json").stdout.count('"is_connected": true') == 2
        except (urllib.error.HTTPError, OSError):
            return False

    def ctl(self, *arguments: str, is_known: bool = True) -> subprocess.CompletedProcess[str]:
        own = self.authority.issue("admin")
        files = ("--tls-cert", str(own.cert), "--tls-key", str(own.key), "--tls-ca", str(own.ca))
        command = [sys.executable, "-m", "segue", "ctl", *arguments, "--scheduler", self.scheduler]
        command += files if is_known else ()
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def stop(self) -> None:
        for process in reversed(self.processes.values()):
            stop_process(process)
        for name in self.processes:
            print(f"{name}: {self.log_path(name).read_text()[-4000:]}")


@pytest.fixture
def cluster(tmp_path: Path, hand_model: Path) -> Iterator[Cluster]:
    running = Cluster(tmp_path, hand_model)
    try:
        running.start()
        wait_until(running.is_ready, "all are ready", 90)
        yield running
    finally:
        running.stop()


def health(port: int, service: str) -> str:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=30)
    return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)


def running_executor(cluster: Cluster) -> str:
    """The one that has the request."""
    lanes = json.loads(cluster.ctl("status", "--json").stdout)["lanes"]
    return next((lane["executor_id"] for lane in lanes if lane["num_running"]), "")


def test_a_drained_executors_stream_goes_on_elsewhere(cluster: Cluster) -> None:
    """Over TLS on every wire, Redis included; what is stopped in order costs nobody anything."""
    refused = cluster.ctl("status", is_known=False)
    assert refused.returncode == 1
    assert "no scheduler leads" in refused.stderr
    assert health(cluster.health_ports[2], SCHEDULER_SERVICE) == "SERVING"
    body = {"model": "hand", "prompt": PROMPT, "max_tokens": NUM_TOKENS, "temperature": 0}
    body |= {"stream": True, "ignore_eos": True, "return_token_ids": True}
    tokens: list[int] = []
    stopped = ""
    with httpx.stream("POST", f"{cluster.url}/v1/completions", json=body, timeout=60) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            if line.startswith("data: {"):
                tokens += json.loads(line.removeprefix("data: "))["choices"][0]["token_ids"]
            if not stopped and len(tokens) > 5:
                stopped = running_executor(cluster)
                cluster.processes[stopped].send_signal(signal.SIGTERM)
    assert tokens == undisturbed()
    assert stopped
    assert cluster.processes[stopped].wait(20) == 0
    assert "1 requests go elsewhere" in cluster.log_path(stopped).read_text()
    other = 1 - int(stopped.removeprefix("executor-"))
    assert health(cluster.health_ports[other], EXECUTOR_SERVICE) == "SERVING"
    cluster.processes["scheduler"].terminate()
    assert cluster.processes["scheduler"].wait(20) == 0
    wait_until(
        lambda: health(cluster.health_ports[other], EXECUTOR_SERVICE) == "NOT_SERVING",
        "an executor without a scheduler is alive and not ready",
    )
    assert health(cluster.health_ports[other], "") == "SERVING"


def test_a_scheduler_with_other_settings_goes_on_with_the_stream(cluster: Cluster) -> None:
    """How the configuration of a running deployment is changed (docs/configuration.md)."""
    body = {"model": "hand", "prompt": PROMPT, "max_tokens": NUM_TOKENS, "temperature": 0}
    body |= {"stream": True, "ignore_eos": True, "return_token_ids": True}
    tokens: list[int] = []
    num_before = 0
    with httpx.stream("POST", f"{cluster.url}/v1/completions", json=body, timeout=60) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            if line.startswith("data: {"):
                tokens += json.loads(line.removeprefix("data: "))["choices"][0]["token_ids"]
            if not num_before and len(tokens) > 5:
                num_before = len(tokens)
                cluster.processes["scheduler"].terminate()
                assert cluster.processes["scheduler"].wait(20) == 0
                cluster.start_scheduler("--max-num-batched-tokens", "64", "--max-num-seqs", "4")
    assert 0 < num_before < NUM_TOKENS
    assert tokens == undisturbed()
    # Budgets leave the KV cache valid: the executors go on where they were.
    log = cluster.log_path("scheduler").read_text()
    assert "goes on with generation" in log
    assert "configuration changed" not in log
