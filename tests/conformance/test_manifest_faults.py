"""Each deliberate fault in a manifest is caught, and by the line that names it.

A check that has never failed may check nothing: this is the list of what the checks are for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.kubernetes.link_rules import link_offences
from tests.kubernetes.pod_rules import pod_offences
from tests.kubernetes.rendered import Manifest, get, kubectl, pod_spec, render, workloads
from tests.kubernetes.schemas import VERSIONS, schema_offences
from tests.kubernetes.setting_rules import setting_offences

Spoil = Callable[[list[Manifest]], object]


@pytest.fixture(scope="module", autouse=True)
def kubectl_is_there() -> None:
    """Outside of any test's time: where the machine has none, it is downloaded."""
    kubectl()


class Fault(NamedTuple):
    """`told`: part of the line that must be among the offences."""

    name: str
    spoil: Spoil
    told: str
    overlay: str = "cpu"


def scheduler(manifests: list[Manifest]) -> Manifest:
    return get(manifests, "StatefulSet", "segue-scheduler")


def executor(manifests: list[Manifest]) -> Manifest:
    return get(manifests, "StatefulSet", "segue-executor")


def gateway(manifests: list[Manifest]) -> Manifest:
    return get(manifests, "Deployment", "segue-gateway")


def pod(workload: Manifest) -> Manifest:
    return pod_spec(workload)


def main(workload: Manifest) -> dict[str, Any]:
    return pod_spec(workload)["containers"][0]


def settings(manifests: list[Manifest], name: str) -> dict[str, str]:
    """Of the one ConfigMap of this service, whatever its hash is."""
    return next(
        m["data"]
        for m in manifests
        if m["kind"] == "ConfigMap" and m["metadata"]["name"].startswith(f"segue-{name}-")
    )


def replace_arg(workload: Manifest, old: str, new: str) -> None:
    arguments = main(workload)["args"]
    (index,) = [i for i, each in enumerate(arguments) if each.startswith(old)]
    arguments[index] = new


def rename(mapping: dict[str, Any], old: str, new: str) -> None:
    mapping[new] = mapping.pop(old)


FAULTS = [
    # Schemas.
    Fault(
        "a misspelt probe",
        lambda m: rename(main(gateway(m)), "readinessProbe", "readynessProbe"),
        "readynessProbe",
    ),
    Fault("replicas in words", lambda m: gateway(m)["spec"].update(replicas="two"), "replicas"),
    Fault(
        "an API that was removed",
        lambda m: get(m, "PodDisruptionBudget", "segue-gateway").update(
            apiVersion="policy/v1beta1"
        ),
        "no schema for policy/v1beta1",
    ),
    Fault(
        "a misspelt target",
        lambda m: rename(
            get(m, "HorizontalPodAutoscaler", "segue-gateway")["spec"]["metrics"][0]["resource"][
                "target"
            ],
            "averageUtilization",
            "averageUtilisation",
        ),
        "averageUtilisation",
        "ha",
    ),
    Fault(
        "a misspelt trigger",
        lambda m: rename(
            get(m, "ScaledObject", "segue-executor")["spec"]["triggers"][0]["metadata"],
            "threshold",
            "treshold",
        ),
        "treshold",
        "gpu",
    ),
    Fault(
        "a misspelt duration",
        lambda m: get(m, "Certificate", "segue-scheduler")["spec"].update(duration="90 days"),
        "90 days",
        "ha",
    ),
    # Pods.
    Fault(
        "root",
        lambda m: pod(executor(m))["securityContext"].update(runAsUser=0),
        "runs as root",
    ),
    Fault(
        "maybe root",
        lambda m: pod(executor(m))["securityContext"].pop("runAsNonRoot"),
        "may run as root",
    ),
    Fault(
        "escalation",
        lambda m: main(scheduler(m))["securityContext"].pop("allowPrivilegeEscalation"),
        "may escalate",
    ),
    Fault(
        "a capability",
        lambda m: main(scheduler(m))["securityContext"]["capabilities"].update(add=["NET_RAW"]),
        "keeps capabilities",
    ),
    Fault(
        "a writable root",
        lambda m: main(gateway(m))["securityContext"].update(readOnlyRootFilesystem=False),
        "may write to its root",
    ),
    Fault(
        "an init container that is root",
        lambda m: pod(gateway(m))["initContainers"][0]["securityContext"].update(runAsUser=0),
        "fetch-model runs as root",
    ),
    Fault(
        "no seccomp profile",
        lambda m: pod(gateway(m))["securityContext"].pop("seccompProfile"),
        "no seccomp",
    ),
    Fault(
        "a path of the node",
        lambda m: pod(executor(m))["volumes"].append({"name": "x", "hostPath": {"path": "/"}}),
        "mounts a path of its node",
    ),
    Fault("the node's network", lambda m: pod(executor(m)).update(hostNetwork=True), "namespace"),
    Fault(
        "service variables, that would be read as flags",
        lambda m: pod(scheduler(m)).pop("enableServiceLinks"),
        "enableServiceLinks",
    ),
    Fault("latest", lambda m: main(gateway(m)).update(image="segue/gateway:latest"), "not pinned"),
    Fault("no tag", lambda m: main(gateway(m)).update(image="a:5000/gateway"), "not pinned"),
    Fault(
        "no limit",
        lambda m: main(executor(m))["resources"]["limits"].pop("memory"),
        "no memory in limits",
    ),
    Fault(
        "gigabytes",
        lambda m: main(scheduler(m))["resources"]["limits"].update(memory="4GB"),
        "4GB is no quantity",
    ),
    Fault(
        "a boundless volume",
        lambda m: pod(scheduler(m))["volumes"][0].update(emptyDir={}),
        "no size limit",
    ),
    Fault("no probe", lambda m: main(gateway(m)).pop("startupProbe"), "no startupProbe"),
    Fault(
        "one question for both",
        lambda m: main(scheduler(m))["readinessProbe"]["grpc"].pop("service"),
        "ready is asked as alive is",
    ),
    Fault(
        "a probe at no port",
        lambda m: main(scheduler(m))["livenessProbe"]["grpc"].update(port=50059),
        "asks at port 50059",
    ),
    Fault(
        "a mount of nothing",
        lambda m: main(executor(m))["volumeMounts"].append({"name": "gone", "mountPath": "/x"}),
        "mounts gone",
    ),
    # Links.
    Fault(
        "a selector that does not select",
        lambda m: gateway(m)["spec"]["template"]["metadata"]["labels"].pop(
            "app.kubernetes.io/component"
        ),
        "does not select its own pods",
    ),
    Fault(
        "a selector that takes others",
        lambda m: gateway(m)["spec"]["selector"]["matchLabels"].pop("app.kubernetes.io/component"),
        "takes the pods of StatefulSet/segue-executor too",
    ),
    Fault(
        "a port by no name",
        lambda m: get(m, "Service", "segue-gateway")["spec"]["ports"][0].update(targetPort="web"),
        "target port web",
    ),
    Fault(
        "a Service of nobody",
        lambda m: get(m, "Service", "segue-gateway")["spec"]["selector"].update(app="x"),
        "selects 0 workloads",
    ),
    Fault(
        "a Service with an address, for a StatefulSet",
        lambda m: get(m, "Service", "segue-executor")["spec"].pop("clusterIP"),
        "no headless Service",
    ),
    Fault(
        "a budget of nobody",
        lambda m: get(m, "PodDisruptionBudget", "segue-executor")["spec"]["selector"].update(
            matchLabels={"a": "b"}
        ),
        "selects nobody",
    ),
    Fault(
        "a budget that lets nothing go",
        lambda m: get(m, "PodDisruptionBudget", "segue-gateway").update(
            spec={
                "minAvailable": 2,
                "selector": get(m, "PodDisruptionBudget", "segue-gateway")["spec"]["selector"],
            }
        ),
        "no node can ever be drained",
    ),
    Fault(
        "two replicas and no budget",
        lambda m: m.remove(get(m, "PodDisruptionBudget", "segue-gateway")),
        "has no PodDisruptionBudget",
    ),
    Fault(
        "two replicas on one node",
        lambda m: pod(executor(m)).pop("topologySpreadConstraints"),
        "all its pods on one node",
    ),
    Fault(
        "an autoscaler of nobody",
        lambda m: get(m, "HorizontalPodAutoscaler", "segue-executor")["spec"][
            "scaleTargetRef"
        ].update(kind="Deployment"),
        "Deployment/segue-executor is not there",
        "ha",
    ),
    Fault(
        "an autoscaler that is undone",
        lambda m: gateway(m)["spec"].update(replicas=2),
        "each apply would undo",
        "ha",
    ),
    Fault(
        "settings that are not there",
        lambda m: main(gateway(m))["envFrom"][0]["configMapRef"].update(name="gone"),
        "ConfigMap/gone is not there",
    ),
    Fault(
        "a certificate that nobody issues",
        lambda m: m.remove(get(m, "Certificate", "segue-executor")),
        "Secret/segue-executor-tls is not there",
        "ha",
    ),
    Fault(
        "no such issuer",
        lambda m: m.remove(get(m, "Issuer", "segue")),
        "Issuer/segue is not there",
        "ha",
    ),
    Fault(
        "a monitor of no port",
        lambda m: get(m, "ServiceMonitor", "segue-executor")["spec"]["endpoints"][0].update(
            port="prometheus"
        ),
        "has no port prometheus",
        "observability",
    ),
    Fault(
        "another namespace",
        lambda m: gateway(m)["metadata"].update(namespace="default"),
        "is in namespace default",
    ),
    # Settings.
    Fault(
        "a flag that is none",
        lambda m: main(scheduler(m))["args"].append("--max-sequences=4"),
        "unknown argument --max-sequences=4",
    ),
    Fault(
        "a variable that is none",
        lambda m: settings(m, "executor").update(SEGUE_KV_CACHE_SIZE="1"),
        "SEGUE_KV_CACHE_SIZE is no setting",
    ),
    Fault(
        "a value that cannot be read",
        lambda m: settings(m, "gateway").update(SEGUE_DRAIN_GRACE_S="2m"),
        "'2m' is not NUMBER",
    ),
    Fault(
        "a variable that is not set",
        lambda m: main(scheduler(m))["env"].pop(0),
        "POD_NAME is not set",
    ),
    Fault(
        "loopback",
        lambda m: replace_arg(executor(m), "--listen", "--listen=127.0.0.1:50061"),
        "where nobody reaches it",
    ),
    Fault(
        "another port than declared",
        lambda m: replace_arg(gateway(m), "--port", "--port=8080"),
        "listens at [8080] and declares [8000]",
    ),
    Fault(
        "a grace shorter than the drain",
        lambda m: pod(gateway(m)).update(terminationGracePeriodSeconds=120),
        "is killed after 120 s",
    ),
    Fault(
        "a drain longer than the grace",
        lambda m: settings(m, "executor").update(SEGUE_DRAIN_GRACE_S="60"),
        "is killed after 45 s",
    ),
    Fault("no preStop", lambda m: main(gateway(m)).pop("lifecycle"), "no preStop"),
    Fault(
        "more threads than CPUs",
        lambda m: settings(m, "executor").update(SEGUE_NUM_THREADS="8"),
        "8 threads on 2 CPUs",
    ),
    Fault(
        "more cache than memory",
        lambda m: settings(m, "executor").update(SEGUE_KV_CACHE_BYTES=str(4 << 30)),
        "of KV cache in 4Gi",
    ),
    Fault(
        "two schedulers that think they are one",
        lambda m: settings(m, "scheduler").update(SEGUE_HAS_PEERS="false"),
        "2 replicas, and has_peers is False",
        "ha",
    ),
    Fault(
        "half of the TLS files",
        lambda m: main(scheduler(m))["env"].remove(
            {"name": "SEGUE_TLS_CA", "value": "/tls/ca.crt"}
        ),
        "together or not at all",
        "ha",
    ),
]


def offences(manifests: list[Manifest]) -> list[str]:
    """Of the first kind of check that has any: each relies on those before it."""
    return (
        [line for each in manifests for line in schema_offences(each, VERSIONS[-1])]
        or [line for each in workloads(manifests) for line in pod_offences(each)]
        or list(link_offences(manifests))
        or list(setting_offences(manifests))
    )


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_told(fault: Fault) -> None:
    manifests = render(fault.overlay)
    fault.spoil(manifests)
    lines = offences(manifests)
    assert any(fault.told in line for line in lines), lines


def test_faults_have_names_of_their_own() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
