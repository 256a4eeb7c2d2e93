"""Who reaches whom, as the NetworkPolicies say it: policies added up, both ends must allow.

Knows pod and namespace selectors and ports; knows no service of ours. Invariant: a pod that no
policy selects is open, as in Kubernetes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.kubernetes.rendered import Manifest, of_kind, pod_labels, pod_spec


@dataclass(frozen=True)
class Peer:
    """One end. `ports`: names of its container ports, by number."""

    namespace: dict[str, str]
    labels: dict[str, str]
    ports: dict[int, str]

    @classmethod
    def of(cls, workload: Manifest) -> Peer:
        ports = [p for c in pod_spec(workload)["containers"] for p in c.get("ports", [])]
        names = {p["containerPort"]: p["name"] for p in ports}
        return cls(namespace_labels("segue"), pod_labels(workload), names)


def namespace_labels(name: str) -> dict[str, str]:
    return {"kubernetes.io/metadata.name": name}


def reaches(manifests: Sequence[Manifest], source: Peer, target: Peer, port: int) -> bool:
    policies = of_kind(manifests, "NetworkPolicy")
    return _allows(policies, "Egress", source, target, port, target.ports) and _allows(
        policies, "Ingress", target, source, port, target.ports
    )


def _allows(
    policies: Sequence[Manifest],
    direction: str,
    owner: Peer,
    other: Peer,
    port: int,
    port_names: dict[int, str],
) -> bool:
    if owner.namespace != namespace_labels("segue"):
        return True  # the policies are of our namespace
    ours = [
        each["spec"]
        for each in policies
        if direction in each["spec"]["policyTypes"]
        and _matches(each["spec"]["podSelector"], owner.labels)
    ]
    if not ours:
        return True
    side = "to" if direction == "Egress" else "from"
    return any(
        _has_port(rule, port, port_names) and _has_peer(rule, side, other)
        for spec in ours
        for rule in spec.get(direction.lower(), [])
    )


def _has_port(rule: dict[str, Any], port: int, names: dict[int, str]) -> bool:
    wanted = [each["port"] for each in rule.get("ports", []) if each["protocol"] == "TCP"]
    return "ports" not in rule or port in wanted or names.get(port) in wanted


def _has_peer(rule: dict[str, Any], side: str, other: Peer) -> bool:
    if side not in rule:
        return True
    return any(_is_peer(peer, other) for peer in rule[side])


def _is_peer(peer: dict[str, Any], other: Peer) -> bool:
    """Without a namespace selector, a peer is of the policy's own namespace."""
    if "namespaceSelector" in peer:
        is_there = _matches(peer["namespaceSelector"], other.namespace)
    else:
        is_there = other.namespace == namespace_labels("segue")
    return is_there and _matches(peer.get("podSelector", {}), other.labels)


def _matches(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    if not selector.get("matchLabels", {}).items() <= labels.items():
        return False
    for expression in selector.get("matchExpressions", []):
        assert expression["operator"] == "In", "another operator needs code here"
        if labels.get(expression["key"]) not in expression["values"]:
            return False
    return True
