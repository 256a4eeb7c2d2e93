"""That what names something names something that is there.

Knows how objects refer to each other: selectors, ports, targets, claims, settings. Knows nothing
about what a pod must be. Invariant: each offence is one readable line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tests.kubernetes.rendered import (
    Manifest,
    containers,
    find,
    is_subset,
    of_kind,
    pod_labels,
    pod_spec,
    title,
    workloads,
)

# Made by others: cert-manager, or whoever deploys.
SECRETS_OF_OTHERS = {"segue-redis-url"}


def link_offences(manifests: Sequence[Manifest]) -> Iterator[str]:
    for rule in RULES:
        yield from rule(manifests)


def selected(manifests: Sequence[Manifest], selector: dict[str, str]) -> list[Manifest]:
    return [each for each in workloads(manifests) if is_subset(selector, pod_labels(each))]


def _selectors_select(manifests: Sequence[Manifest]) -> Iterator[str]:
    for each in workloads(manifests):
        wanted = each["spec"]["selector"]["matchLabels"]
        if not is_subset(wanted, pod_labels(each)):
            yield f"{title(each)}: its selector does not select its own pods"
        for spread in pod_spec(each).get("topologySpreadConstraints", []):
            if not is_subset(spread["labelSelector"]["matchLabels"], pod_labels(each)):
                yield f"{title(each)}: its topology spread counts the pods of others"
        others = [
            other
            for other in workloads(manifests)
            if other is not each and is_subset(wanted, pod_labels(other))
        ]
        for other in others:
            yield f"{title(each)}: its selector takes the pods of {title(other)} too"
    for budget in of_kind(manifests, "PodDisruptionBudget"):
        if not selected(manifests, budget["spec"]["selector"]["matchLabels"]):
            yield f"{title(budget)} selects nobody"


def _services_reach(manifests: Sequence[Manifest]) -> Iterator[str]:
    for service in of_kind(manifests, "Service"):
        targets = selected(manifests, service["spec"]["selector"])
        if len(targets) != 1:
            yield f"{title(service)} selects {len(targets)} workloads"
            continue
        known = _ports(targets[0])
        for port in service["spec"]["ports"]:
            target = port.get("targetPort", port["port"])
            if target not in known:
                yield f"{title(service)}: target port {target} is no port of {title(targets[0])}"
    for each in of_kind(manifests, "StatefulSet"):
        service = find(manifests, "Service", each["spec"]["serviceName"])
        if service is None or service["spec"].get("clusterIP") != "None":
            yield f"{title(each)}: {each['spec']['serviceName']} is no headless Service"
        elif each["spec"]["serviceName"] not in each["metadata"]["name"]:
            yield f"{title(each)}: its Service is another's"


def _ports(workload: Manifest) -> set[str | int]:
    ports = [p for c in pod_spec(workload)["containers"] for p in c.get("ports", [])]
    return {p["name"] for p in ports} | {p["containerPort"] for p in ports}


def _monitors_scrape(manifests: Sequence[Manifest]) -> Iterator[str]:
    for monitor in of_kind(manifests, "ServiceMonitor"):
        wanted = monitor["spec"]["selector"]["matchLabels"]
        services = [
            s
            for s in of_kind(manifests, "Service")
            if is_subset(wanted, s["metadata"].get("labels", {}))
        ]
        if not services:
            yield f"{title(monitor)} selects no Service"
        for service in services:
            names = {port["name"] for port in service["spec"]["ports"]}
            for endpoint in monitor["spec"]["endpoints"]:
                if endpoint["port"] not in names:
                    yield f"{title(monitor)}: {title(service)} has no port {endpoint['port']}"


def least_replicas(manifests: Sequence[Manifest], workload: Manifest) -> int:
    """What an autoscaler leaves at least, or what the workload says."""
    for scaler in of_kind(manifests, "HorizontalPodAutoscaler", "ScaledObject"):
        target = scaler["spec"]["scaleTargetRef"]
        if (target["kind"], target["name"]) == (workload["kind"], workload["metadata"]["name"]):
            return scaler["spec"].get("minReplicas", scaler["spec"].get("minReplicaCount", 1))
    return workload["spec"].get("replicas", 1)


def _scalers_scale(manifests: Sequence[Manifest]) -> Iterator[str]:
    seen: dict[tuple[str, str], str] = {}
    for scaler in of_kind(manifests, "HorizontalPodAutoscaler", "ScaledObject"):
        target = scaler["spec"]["scaleTargetRef"]
        key = (target["kind"], target["name"])
        workload = find(manifests, *key)
        if workload is None:
            yield f"{title(scaler)}: its target {target['kind']}/{target['name']} is not there"
        elif "replicas" in workload["spec"]:
            yield f"{title(workload)}: each apply would undo what {title(scaler)} did"
        if key in seen:
            yield f"{title(scaler)} and {seen[key]} scale the same"
        seen[key] = title(scaler)


def _budgets_leave_room(manifests: Sequence[Manifest]) -> Iterator[str]:
    for budget in of_kind(manifests, "PodDisruptionBudget"):
        spec = budget["spec"]
        for workload in selected(manifests, spec["selector"]["matchLabels"]):
            replicas = least_replicas(manifests, workload)
            if spec.get("maxUnavailable") == 0 or spec.get("minAvailable", 0) >= replicas:
                yield f"{title(budget)}: no node can ever be drained ({replicas} replicas)"
    for workload in workloads(manifests):
        if least_replicas(manifests, workload) < 2:
            continue
        budgets = [b["spec"]["selector"]["matchLabels"] for b in _budgets(manifests)]
        if not any(is_subset(wanted, pod_labels(workload)) for wanted in budgets):
            yield f"{title(workload)} has no PodDisruptionBudget"
        if "topologySpreadConstraints" not in pod_spec(workload):
            yield f"{title(workload)} may have all its pods on one node"


def _budgets(manifests: Sequence[Manifest]) -> list[Manifest]:
    return of_kind(manifests, "PodDisruptionBudget")


def _sources_exist(manifests: Sequence[Manifest]) -> Iterator[str]:
    secrets = {m["spec"]["secretName"] for m in of_kind(manifests, "Certificate")}
    secrets |= SECRETS_OF_OTHERS
    for workload in workloads(manifests):
        for kind, name in _sources(workload):
            is_there = name in secrets if kind == "Secret" else find(manifests, kind, name)
            if not is_there:
                yield f"{title(workload)}: {kind}/{name} is not there"


def _sources(workload: Manifest) -> Iterator[tuple[str, str]]:
    for container in containers(workload):
        for source in container.get("envFrom", []):
            yield "ConfigMap", source["configMapRef"]["name"]
        for variable in container.get("env", []):
            reference = variable.get("valueFrom", {}).get("secretKeyRef")
            if reference is not None:
                yield "Secret", reference["name"]
    for volume in pod_spec(workload).get("volumes", []):
        if "secret" in volume:
            yield "Secret", volume["secret"]["secretName"]
        if "persistentVolumeClaim" in volume:
            yield "PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]


def _issuers_exist(manifests: Sequence[Manifest]) -> Iterator[str]:
    for each in of_kind(manifests, "Certificate"):
        reference = each["spec"]["issuerRef"]
        if find(manifests, reference["kind"], reference["name"]) is None:
            yield f"{title(each)}: {reference['kind']}/{reference['name']} is not there"


def _is_in_one_namespace(manifests: Sequence[Manifest]) -> Iterator[str]:
    (namespace,) = of_kind(manifests, "Namespace")
    if namespace["metadata"]["labels"].get("pod-security.kubernetes.io/enforce") != "restricted":
        yield "the namespace does not enforce restricted pods"
    for each in manifests:
        if each is not namespace and each["metadata"].get("namespace") != "segue":
            yield f"{title(each)} is in namespace {each['metadata'].get('namespace')}"


Rule = Callable[[Sequence[Manifest]], Iterator[str]]
RULES: tuple[Rule, ...] = (
    _selectors_select,
    _services_reach,
    _monitors_scrape,
    _scalers_scale,
    _budgets_leave_room,
    _sources_exist,
    _issuers_exist,
    _is_in_one_namespace,
)
