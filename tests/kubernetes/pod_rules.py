"""What every pod must be: restricted, limited, probed, and of a pinned image.

Knows pods only, not what selects or reaches them. Invariant: each rule gives one readable line for
each offence, and nothing for a pod that is as it should be.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from tests.kubernetes.rendered import Manifest, containers, pod_spec, title

QUANTITY = re.compile(r"^\d+(\.\d+)?(m|k|Ki|M|Mi|G|Gi|T|Ti)?$")
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
POD_FIELDS = {"automountServiceAccountToken": False, "enableServiceLinks": False}
HOST_FIELDS = ("hostNetwork", "hostPID", "hostIPC")


def pod_offences(workload: Manifest) -> Iterator[str]:
    for rule in RULES:
        for offence in rule(workload):
            yield f"{title(workload)}: {offence}"


def _keeps_to_itself(workload: Manifest) -> Iterator[str]:
    """The pod's half of the pod security standard `restricted`."""
    spec = pod_spec(workload)
    profile = spec.get("securityContext", {}).get("seccompProfile", {})
    if profile.get("type") != "RuntimeDefault":
        yield "no seccomp profile RuntimeDefault"
    if any(spec.get(field) for field in HOST_FIELDS):
        yield "shares a namespace with its node"
    if any("hostPath" in volume for volume in spec.get("volumes", [])):
        yield "mounts a path of its node"
    for field, value in POD_FIELDS.items():
        if spec.get(field) is not value:
            yield f"{field} is not {value}"


def _is_restricted(workload: Manifest) -> Iterator[str]:
    """The containers' half, and a root file system that nobody writes to."""
    security = pod_spec(workload).get("securityContext", {})
    for container in containers(workload):
        own = container.get("securityContext", {})
        name = container["name"]
        if not {**security, **own}.get("runAsNonRoot"):
            yield f"{name} may run as root"
        if not {**security, **own}.get("runAsUser"):
            yield f"{name} runs as root, or as whoever its image says"
        if own.get("allowPrivilegeEscalation") is not False:
            yield f"{name} may escalate its privileges"
        if own.get("capabilities", {}).get("drop") != ["ALL"] or "add" in own["capabilities"]:
            yield f"{name} keeps capabilities"
        if own.get("readOnlyRootFilesystem") is not True:
            yield f"{name} may write to its root file system"
        if own.get("privileged"):
            yield f"{name} is privileged"


def _has_pinned_images(workload: Manifest) -> Iterator[str]:
    for container in containers(workload):
        image: str = container["image"]
        tag = image.rpartition("/")[2].partition(":")[2]
        if "@sha256:" not in image and tag in ("", "latest"):
            yield f"{container['name']}: image {image} is not pinned"


def _has_limits(workload: Manifest) -> Iterator[str]:
    for container in containers(workload):
        resources = container.get("resources", {})
        for part in ("requests", "limits"):
            for what in ("cpu", "memory"):
                if what not in resources.get(part, {}):
                    yield f"{container['name']} has no {what} in {part}"
            for what, quantity in resources.get(part, {}).items():
                if not QUANTITY.match(str(quantity)):
                    yield f"{container['name']}: {what} {quantity} is no quantity"


def _has_bounded_volumes(workload: Manifest) -> Iterator[str]:
    for claim in workload["spec"].get("volumeClaimTemplates", []):
        storage = claim["spec"]["resources"]["requests"]["storage"]
        if not QUANTITY.match(storage):
            yield f"claim {claim['metadata']['name']}: storage {storage} is no quantity"
    for volume in pod_spec(workload).get("volumes", []):
        if "emptyDir" in volume and not QUANTITY.match(volume["emptyDir"].get("sizeLimit", "")):
            yield f"volume {volume['name']} has no size limit"


def _is_probed(workload: Manifest) -> Iterator[str]:
    """Three questions, at ports that are there; ready must not be what alive is."""
    for container in pod_spec(workload)["containers"]:
        name = container["name"]
        ports = container.get("ports", [])
        known = {p["name"] for p in ports} | {p["containerPort"] for p in ports}
        for probe_name in PROBES:
            probe = container.get(probe_name)
            if probe is None:
                yield f"{name} has no {probe_name}"
                continue
            port = _probe_port(probe)
            if port is not None and port not in known:
                yield f"{name}: {probe_name} asks at port {port}, which is not declared"
        if _question(container, "livenessProbe") == _question(container, "readinessProbe"):
            yield f"{name}: ready is asked as alive is"


def _probe_port(probe: dict[str, Any]) -> str | int | None:
    for kind in ("grpc", "httpGet", "tcpSocket"):
        if kind in probe:
            return probe[kind]["port"]
    return None


def _question(container: Manifest, probe_name: str) -> object:
    probe = container.get(probe_name, {})
    return [probe.get(kind) for kind in ("grpc", "httpGet", "tcpSocket", "exec")]


def _mounts_what_is_there(workload: Manifest) -> Iterator[str]:
    spec = pod_spec(workload)
    volumes = {volume["name"] for volume in spec.get("volumes", [])}
    volumes |= {c["metadata"]["name"] for c in workload["spec"].get("volumeClaimTemplates", [])}
    mounted: set[str] = set()
    for container in containers(workload):
        for mount in container.get("volumeMounts", []):
            mounted.add(mount["name"])
            if mount["name"] not in volumes:
                yield f"{container['name']} mounts {mount['name']}, which is no volume"
    for unused in sorted(volumes - mounted):
        yield f"nobody mounts volume {unused}"


Rule = Callable[[Manifest], Iterator[str]]
RULES: tuple[Rule, ...] = (
    _keeps_to_itself,
    _is_restricted,
    _has_pinned_images,
    _has_limits,
    _has_bounded_volumes,
    _is_probed,
    _mounts_what_is_there,
)
