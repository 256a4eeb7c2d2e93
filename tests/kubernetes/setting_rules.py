"""That each container's command line and environment are what its service understands.

Knows the services' own configurations, reads them as they do, and compares the figures: drains
with graces, threads with CPUs, ports with what is declared. Invariant: each offence is one line.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

from executor_svc.config import ExecutorServiceConfig
from gateway_svc.config import GatewayConfig
from scheduler_svc.config import SchedulerServiceConfig
from segue.config import parse_config
from tests.kubernetes.rendered import Manifest, get, pod_spec, title, workloads

CONFIGS: dict[str, type[Any]] = {
    "scheduler_svc": SchedulerServiceConfig,
    "executor_svc": ExecutorServiceConfig,
    "gateway_svc": GatewayConfig,
}
# Beyond the drain: closing what still hangs, and a machine that is busy.
STOP_MARGIN_S = 10
FIELD_PATHS = {"metadata.name": "pod-0", "status.podIP": "10.0.0.7"}


class Unreadable(Exception):
    """The service would end with exit code 2; the message is its line."""


def service_of(container: Manifest) -> str | None:
    command = container.get("command", [])
    return command[2] if command[:2] == ["python", "-m"] and command[2] in CONFIGS else None


def environ_of(manifests: Sequence[Manifest], container: Manifest) -> dict[str, str]:
    """As kubelet makes it; what comes from a Secret is a URL here."""
    environ: dict[str, str] = {}
    for source in container.get("envFrom", []):
        environ |= get(manifests, "ConfigMap", source["configMapRef"]["name"])["data"]
    for variable in container.get("env", []):
        if "value" in variable:
            environ[variable["name"]] = variable["value"]
        elif "fieldRef" in variable["valueFrom"]:
            path = variable["valueFrom"]["fieldRef"]["fieldPath"]
            environ[variable["name"]] = FIELD_PATHS[path]
        else:
            environ[variable["name"]] = "rediss://somewhere:6380/0"
    return environ


def config_of(manifests: Sequence[Manifest], container: Manifest) -> Any:
    """What the service would run with. Raises Unreadable."""
    service = service_of(container)
    assert service is not None
    environ = environ_of(manifests, container)
    arguments = [
        re.sub(r"\$\((\w+)\)", lambda found: environ.get(found[1], found[0]), each)
        for each in container.get("args", [])
    ]
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return parse_config(CONFIGS[service], arguments, environ)
    except SystemExit as error:
        raise Unreadable(said.getvalue().strip().splitlines()[-1]) from error


def setting_offences(manifests: Sequence[Manifest]) -> Iterator[str]:
    for workload in workloads(manifests):
        for container in pod_spec(workload)["containers"]:
            if service_of(container) is None:
                continue
            for offence in _container_offences(manifests, workload, container):
                yield f"{title(workload)}: {offence}"


def _container_offences(
    manifests: Sequence[Manifest], workload: Manifest, container: Manifest
) -> Iterator[str]:
    try:
        config = config_of(manifests, container)
    except Unreadable as error:
        yield str(error)
        return
    environ = environ_of(manifests, container)
    known = {f"SEGUE_{each.name.upper()}" for each in fields(config)}
    for name in sorted(environ):
        if name.startswith("SEGUE_") and name not in known:
            yield f"{name} is no setting of it"
    for argument in container.get("args", []):
        for name in re.findall(r"\$\((\w+)\)", argument):
            if name not in environ:
                yield f"{argument}: {name} is not set"
    yield from _port_offences(config, container)
    yield from _grace_offences(config, workload, container)
    yield from _size_offences(config, workload, container)


def _port_offences(config: Any, container: Manifest) -> Iterator[str]:
    """What is listened at on every address is declared, and nothing else is."""
    declared = {each["containerPort"] for each in container["ports"]}
    addresses = [getattr(config, name, "") for name in ("listen", "health_listen")]
    listened = {int(a.rpartition(":")[2]) for a in addresses if a}
    if isinstance(config, GatewayConfig):
        addresses, listened = [f"{config.host}:"], {config.port}
    elif config.metrics_port:
        listened.add(config.metrics_port)
    if any(address and not address.startswith("0.0.0.0:") for address in addresses):
        yield f"listens at {addresses}, where nobody reaches it"
    if listened != declared:
        yield f"listens at {sorted(listened)} and declares {sorted(declared)}"


def _grace_offences(config: Any, workload: Manifest, container: Manifest) -> Iterator[str]:
    grace_s = pod_spec(workload)["terminationGracePeriodSeconds"]
    pre_stop = container.get("lifecycle", {}).get("preStop", {})
    pre_stop_s = pre_stop.get("sleep", {}).get("seconds", 0)
    needed_s = pre_stop_s + getattr(config, "drain_grace_s", 0) + STOP_MARGIN_S
    if grace_s < needed_s:
        yield f"is killed after {grace_s} s; to stop it takes up to {needed_s:.0f} s"
    if isinstance(config, GatewayConfig) and not pre_stop_s:
        yield "refuses requests before balancers know that it stops: no preStop"


def _size_offences(config: Any, workload: Manifest, container: Manifest) -> Iterator[str]:
    limits = container["resources"]["limits"]
    if isinstance(config, ExecutorServiceConfig):
        if not 0 < config.num_threads <= float(limits["cpu"]):
            yield f"{config.num_threads} threads on {limits['cpu']} CPUs"
        is_gpu = "nvidia.com/gpu" in limits
        if not is_gpu and config.kv_cache_bytes > 0.6 * _bytes(limits["memory"]):
            yield f"{config.kv_cache_bytes} bytes of KV cache in {limits['memory']}"
    if isinstance(config, SchedulerServiceConfig):
        replicas = workload["spec"].get("replicas", 1)
        if (replicas > 1) != config.has_peers:
            yield f"{replicas} replicas, and has_peers is {config.has_peers}"


def _bytes(quantity: str) -> int:
    return int(quantity.removesuffix("Gi")) << 30
