"""Which processes `segue serve` runs, with which command lines, on which ports.

Knows the flags of each service by name, and imports none of them; starts nothing. Invariant: a port
is chosen once, so whoever is started again is found where it was.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from segue import embedded_redis, probes
from segue.admin_client import AdminClient
from segue.child import ChildSpec
from segue.config import to_flags
from segue.embedded_redis import RedisBinary
from segue.serve_config import EXECUTOR_FLAGS, GATEWAY_FLAGS, SCHEDULER_FLAGS, ServeConfig
from segue.tracing import names

# Stopped from the highest: nobody loses a peer that it still needs.
REDIS_STAGE, EXECUTOR_STAGE, SCHEDULER_STAGE, GATEWAY_STAGE = range(4)
LOOPBACK = "127.0.0.1"
PROBE_TIMEOUT_S = 2.0


class PortTaken(Exception):
    """The message is one readable line: what is wrong, and what to do."""

    def __init__(self, what: str, advice: str = "choose another with --port") -> None:
        super().__init__(f"{what}; {advice}")
        self.what = what
        self.advice = advice


@dataclass(slots=True, frozen=True)
class ServePlan:
    """Addresses of everything, fixed for the life of the supervisor."""

    config: ServeConfig
    model_path: Path
    model_names: tuple[str, ...]
    deployment: str
    redis_port: int
    scheduler_ports: tuple[int, ...]
    executor_ports: tuple[int, ...]
    metrics_ports: tuple[int, ...]  # of schedulers, then of executors
    gateway_ports: tuple[int, ...]
    worker_ports: tuple[tuple[int, ...], ...] = ()  # of each gateway, where it has several workers

    @property
    def redis_url(self) -> str:
        return self.config.redis_url or f"redis://{LOOPBACK}:{self.redis_port}/0"

    @property
    def scheduler_addresses(self) -> tuple[str, ...]:
        return tuple(f"{LOOPBACK}:{port}" for port in self.scheduler_ports)

    @property
    def url(self) -> str:
        return f"http://{_reachable(self.config.host)}:{self.gateway_ports[0]}"

    def admin(self) -> AdminClient:
        return AdminClient(self.scheduler_addresses, PROBE_TIMEOUT_S)

    def redis(self, binary: RedisBinary, directory: Path) -> ChildSpec:
        async def is_ready() -> bool:
            return await embedded_redis.answers(self.redis_url)

        command = binary.command(directory, self.redis_port)
        return ChildSpec("redis", command, REDIS_STAGE, is_ready, self.redis_port)

    def schedulers(self, unknown: Sequence[str]) -> list[ChildSpec]:
        return [
            ChildSpec(
                f"scheduler-{i}",
                _module(
                    "scheduler_svc",
                    *("--listen", f"{LOOPBACK}:{port}", "--scheduler-id", f"s{i}"),
                    *("--redis-url", self.redis_url, "--deployment", self.deployment),
                    *("--metrics-port", str(self.metrics_ports[i])),
                    *("--served-model-name", ",".join(self.model_names)),
                    "--has-peers" if len(self.scheduler_ports) > 1 else "--no-has-peers",
                    *to_flags(self.config, SCHEDULER_FLAGS),
                    *unknown,
                ),
                SCHEDULER_STAGE,
                probes.is_led(self.admin(), port),
                port,
                _service_name(names.SERVICE_SCHEDULER),
            )
            for i, port in enumerate(self.scheduler_ports)
        ]

    def executors(self) -> list[ChildSpec]:
        metrics_ports = self.metrics_ports[len(self.scheduler_ports) :]
        return [
            ChildSpec(
                f"executor-{i}",
                _module(
                    "executor_svc",
                    *("--listen", f"{LOOPBACK}:{port}", "--executor-id", f"e{i}"),
                    *("--schedulers", ",".join(self.scheduler_addresses)),
                    *("--model", str(self.model_path), "--deployment", self.deployment),
                    *("--metrics-port", str(metrics_ports[i])),
                    *to_flags(self.config, EXECUTOR_FLAGS),
                ),
                EXECUTOR_STAGE,
                probes.leader_reaches(self.admin(), f"e{i}"),
                port,
                _service_name(names.SERVICE_EXECUTOR),
            )
            for i, port in enumerate(self.executor_ports)
        ]

    def gateways(self) -> list[ChildSpec]:
        return [
            ChildSpec(
                f"gateway-{i}",
                _module(
                    "gateway_svc",
                    *("--host", self.config.host, "--port", str(port), "--gateway-id", f"g{i}"),
                    *("--schedulers", ",".join(self.scheduler_addresses)),
                    *("--model", str(self.model_path)),
                    *("--served-model-name", ",".join(self.model_names)),
                    *self._worker_flags(i),
                    *to_flags(self.config, GATEWAY_FLAGS),
                ),
                GATEWAY_STAGE,
                probes.answers_http(f"http://{_reachable(self.config.host)}:{port}/ready"),
                port,
                _service_name(names.SERVICE_GATEWAY),
            )
            for i, port in enumerate(self.gateway_ports)
        ]

    def _worker_flags(self, gateway: int) -> tuple[str, ...]:
        if not self.worker_ports:
            return ()
        ports = self.worker_ports[gateway]
        return ("--workers", str(len(ports)), "--metrics-ports", ",".join(map(str, ports)))


def make_plan(config: ServeConfig, model_path: Path) -> ServePlan:
    """Chooses the ports. Raises PortTaken where one that was asked for is not free."""
    model_names = config.served_model_name or (model_path.name,)
    num_inner = 1 + 2 * (config.num_schedulers + config.num_executors)
    num_workers = config.gateway_workers if config.gateway_workers > 1 else 0
    ports = iter(free_ports(num_inner + config.num_gateways * (1 + num_workers)))
    redis_port = next(ports)
    scheduler_ports = tuple(next(ports) for _ in range(config.num_schedulers))
    executor_ports = tuple(next(ports) for _ in range(config.num_executors))
    metrics_ports = tuple(next(ports) for _ in range(config.num_schedulers + config.num_executors))
    worker_ports = tuple(
        tuple(next(ports) for _ in range(num_workers)) for _ in range(config.num_gateways)
    )
    gateway_ports = tuple(ports)
    if config.port:
        gateway_ports = tuple(config.port + i for i in range(config.num_gateways))
        for port in gateway_ports:
            require_free(config.host, port)
    return ServePlan(
        config=config,
        model_path=model_path,
        model_names=model_names,
        deployment=config.deployment_of(model_names[0]),
        redis_port=redis_port,
        scheduler_ports=scheduler_ports,
        executor_ports=executor_ports,
        metrics_ports=metrics_ports,
        gateway_ports=gateway_ports,
        worker_ports=worker_ports if num_workers else (),
    )


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind((LOOPBACK, 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def require_free(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((host, port))
        except OverflowError as error:
            raise PortTaken(f"port {port}: there is none above 65535") from error
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortTaken(f"port {port} of {host} is taken") from error
            text = f"port {port} of {host} can not be used: {error.strerror}"
            raise PortTaken(text, "choose another with --host or --port") from error


def _service_name(service: str) -> dict[str, str]:
    """Of its traces. What the user calls the whole stands before the part, so parts differ."""
    given = os.environ.get("OTEL_SERVICE_NAME")
    name = service.replace("segue", given, 1) if given else service
    return {"OTEL_SERVICE_NAME": name}


def _module(name: str, *flags: str) -> tuple[str, ...]:
    return (sys.executable, "-m", name, *flags)


def _reachable(host: str) -> str:
    if host in ("", "0.0.0.0", "::"):
        return LOOPBACK
    return f"[{host}]" if ":" in host else host
