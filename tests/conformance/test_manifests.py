"""The Kubernetes manifests: rendered, valid, as the policy wants them, and true to the services.

What is deliberately wrong is caught: test_manifest_faults.py.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from executor_svc.config import ExecutorServiceConfig
from gateway_svc.config import GatewayConfig
from scheduler_svc.config import SchedulerServiceConfig
from segue.grpc_server import EXECUTOR_SERVICE, SCHEDULER_SERVICE
from segue.grpc_tls import EXECUTOR_NAME, SCHEDULER_NAME
from segue.redis_client import open_redis
from segue.version import VERSION
from tests.kubernetes.link_rules import link_offences
from tests.kubernetes.pod_rules import pod_offences
from tests.kubernetes.reachability import Peer, namespace_labels, reaches
from tests.kubernetes.rendered import (
    K8S,
    OVERLAYS,
    Manifest,
    containers,
    find,
    get,
    kubectl,
    of_kind,
    pod_spec,
    read_manifests,
    render,
    render_directory,
    workloads,
)
from tests.kubernetes.schemas import VERSIONS, schema_offences
from tests.kubernetes.setting_rules import config_of, service_of, setting_offences
from tests.observability_files import prometheus, rules
from tests.query_faults import BY_OPERATOR, faults
from tests.source_tree import ROOT

SERVICES = ("scheduler", "executor", "gateway", "redis")
EXAMPLES = ("inference-pool.yaml",)


@pytest.fixture(scope="module", autouse=True)
def kubectl_is_there() -> None:
    """Outside of any test's time: where the machine has none, it is downloaded."""
    kubectl()


def test_the_overlays_are_these() -> None:
    """A wrong root would make every other test pass."""
    assert OVERLAYS == ["cpu", "gpu", "ha", "observability", "sentinel"]
    assert {path.name for path in K8S.glob("examples/*.yaml")} >= set(EXAMPLES)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_object_fits_its_schema(overlay: str, version: str) -> None:
    assert [o for each in render(overlay) for o in schema_offences(each, version)] == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_fits_its_schema(name: str) -> None:
    manifests = read_manifests(K8S / "examples" / name)
    assert [o for each in manifests for o in schema_offences(each, VERSIONS[-1])] == []


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_pod_is_as_the_policy_wants_it(overlay: str) -> None:
    assert [o for each in workloads(render(overlay)) for o in pod_offences(each)] == []


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_everything_that_is_named_is_there(overlay: str) -> None:
    assert list(link_offences(render(overlay))) == []


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_services_understand_their_settings(overlay: str) -> None:
    manifests = render(overlay)
    started = {service_of(c) for w in workloads(manifests) for c in containers(w)}
    assert started >= {"scheduler_svc", "executor_svc", "gateway_svc"}
    assert list(setting_offences(manifests)) == []


def _config(manifests: list[Manifest], name: str) -> object:
    kind = "Deployment" if name == "gateway" else "StatefulSet"
    (container,) = pod_spec(get(manifests, kind, f"segue-{name}"))["containers"]
    return config_of(manifests, container)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_services_agree_with_each_other(overlay: str) -> None:
    manifests = render(overlay)
    scheduler = _config(manifests, "scheduler")
    executor = _config(manifests, "executor")
    gateway = _config(manifests, "gateway")
    assert isinstance(scheduler, SchedulerServiceConfig)
    assert isinstance(executor, ExecutorServiceConfig)
    assert isinstance(gateway, GatewayConfig)
    assert (executor.deployment, executor.block_size) == (
        scheduler.deployment,
        scheduler.block_size,
    )
    assert executor.model == gateway.model
    assert len({scheduler.tls is None, executor.tls is None, gateway.tls is None}) == 1
    service = get(manifests, "Service", "segue-scheduler")
    ports = {port["port"] for port in service["spec"]["ports"]}
    for address in (*executor.schedulers, *gateway.schedulers):
        name, _, port = address.partition(":")
        assert (name, int(port) in ports) == ("segue-scheduler", True)
    # Each pod is somebody else.
    assert (scheduler.scheduler_id, executor.executor_id, gateway.gateway_id) == ("pod-0",) * 3
    assert scheduler.advertise.partition(":")[0] == executor.advertise.partition(":")[0]


def test_ready_is_asked_by_the_names_that_the_services_have() -> None:
    manifests = render("cpu")
    for name, service in (("scheduler", SCHEDULER_SERVICE), ("executor", EXECUTOR_SERVICE)):
        (container,) = pod_spec(get(manifests, "StatefulSet", f"segue-{name}"))["containers"]
        assert container["readinessProbe"]["grpc"]["service"] == service
        assert "service" not in container["livenessProbe"]["grpc"]
        assert "service" not in container["startupProbe"]["grpc"]


@pytest.mark.parametrize("overlay", ["cpu", "observability", "gpu"])
def test_only_these_reach_each_other(overlay: str) -> None:
    """The whole matrix: every service to every port of every service."""
    manifests = render(overlay)
    peers = {
        each["metadata"]["labels"]["app.kubernetes.io/component"]: Peer.of(each)
        for each in workloads(manifests)
    }
    assert set(peers) == set(SERVICES)
    peers["a stranger of ours"] = Peer(namespace_labels("segue"), {}, {})
    peers["somebody elsewhere"] = Peer(namespace_labels("other"), {}, {})
    peers["prometheus"] = Peer(namespace_labels("monitoring"), {}, {})
    open_to = {
        (source, target, name)
        for source, peer in peers.items()
        for target in SERVICES
        for port, name in peers[target].ports.items()
        if source != target and reaches(manifests, peer, peers[target], port)
    }
    expected = {
        ("scheduler", "redis", "redis"),
        ("scheduler", "executor", "grpc"),
        ("executor", "scheduler", "grpc"),
        ("gateway", "scheduler", "grpc"),
        *((outside, "gateway", "http") for outside in ("somebody elsewhere", "prometheus")),
    }
    if overlay == "observability":
        expected |= {("prometheus", name, "metrics") for name in ("scheduler", "executor")}
    assert open_to == expected


def test_sentinels_reach_what_they_watch_and_schedulers_ask_them() -> None:
    manifests = render("sentinel")
    peers = {
        each["metadata"]["labels"]["app.kubernetes.io/component"]: Peer.of(each)
        for each in workloads(manifests)
    }
    data, watch = ("redis", 6379), ("sentinel", 26379)
    open_to = {
        (source, target)
        for source, peer in peers.items()
        for target, port in (data, watch)
        if source != target and reaches(manifests, peer, peers[target], port)
    }
    assert open_to == {
        *(("scheduler", target) for target in ("redis", "sentinel")),
        *(("redis", "sentinel"), ("sentinel", "redis")),
    }


def test_the_sentinel_url_names_each_of_them() -> None:
    """And all of Redis is one version, wherever the tag stands."""
    manifests = render("sentinel")
    scheduler = pod_spec(get(manifests, "StatefulSet", "segue-scheduler"))["containers"][0]
    config = config_of(manifests, scheduler)
    pool = open_redis(config.redis_url).connection_pool
    kwargs = [one.connection_pool.connection_kwargs for one in pool.sentinel_manager.sentinels]
    replicas = get(manifests, "StatefulSet", "segue-sentinel")["spec"]["replicas"]
    assert [one["host"] for one in kwargs] == [
        f"segue-sentinel-{number}.segue-sentinel" for number in range(replicas)
    ]
    script = (K8S / "overlays" / "sentinel" / "start-sentinel.sh").read_text()
    assert f"sentinel monitor {pool.service_name} " in script
    images = {c["image"] for w in workloads(manifests) for c in containers(w)}
    assert len([image for image in images if image.startswith("redis")]) == 1
    assert (config.durability, config.has_peers) == ("replicated", True)


def test_certificates_carry_the_names_that_peers_look_for() -> None:
    manifests = render("ha")
    for name in (SCHEDULER_NAME, EXECUTOR_NAME):
        assert name in get(manifests, "Certificate", name)["spec"]["dnsNames"]


def test_certificates_and_a_redis_of_ours_fit_together(tmp_path: Path) -> None:
    """No overlay has this combination of components; people's own will."""
    directory = K8S / "overlays" / "cpu"
    relative = Path("../" * (len(tmp_path.resolve().parts) - 1)) / str(K8S).lstrip("/")
    (tmp_path / "kustomization.yaml").write_text(
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nnamespace: segue\n"
        f"resources: [{relative}/overlays/{directory.name}]\n"
        f"components: [{relative}/components/tls, {relative}/components/cert-manager]\n"
    )
    manifests = render_directory(tmp_path)
    redis = get(manifests, "StatefulSet", "segue-redis")
    arguments: list[str] = pod_spec(redis)["containers"][0]["args"]
    assert arguments[arguments.index("--tls-port") + 1] == "6379"
    assert arguments[arguments.index("--appendonly") + 1] == "yes"
    assert list(link_offences(manifests)) == []
    assert [o for each in workloads(manifests) for o in pod_offences(each)] == []
    scheduler = _config(manifests, "scheduler")
    assert isinstance(scheduler, SchedulerServiceConfig)
    assert scheduler.redis_url.startswith("rediss://segue-redis:6379/0?")
    assert "segue-redis" in get(manifests, "Certificate", "segue-redis")["spec"]["dnsNames"]


def test_two_schedulers_share_an_external_redis() -> None:
    manifests = render("ha")
    assert get(manifests, "StatefulSet", "segue-scheduler")["spec"]["replicas"] == 2
    assert find(manifests, "StatefulSet", "segue-redis") is None


def test_gpu_executors_get_a_gpu_and_no_init_container() -> None:
    executor = pod_spec(get(render("gpu"), "StatefulSet", "segue-executor"))
    assert executor["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in (
        executor["tolerations"]
    )
    assert "initContainers" not in executor


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_images_are_of_this_version(overlay: str) -> None:
    images = [c["image"] for w in workloads(render(overlay)) for c in containers(w)]
    assert {i.rpartition(":")[2] for i in images if i.startswith("segue/")} == {VERSION}


def _expressions() -> dict[str, str]:
    rules = of_kind(render("observability"), "PrometheusRule")
    found = {
        rule["alert"]: rule["expr"]
        for each in rules
        for group in each["spec"]["groups"]
        for rule in group["rules"]
    }
    for each in of_kind(render("gpu"), "ScaledObject"):
        found["keda"] = each["spec"]["triggers"][0]["metadata"]["query"]
    adapter = read_manifests(K8S / "examples" / "prometheus-adapter-rules.yaml")[0]
    found["hpa"] = adapter["rules"]["external"][0]["seriesQuery"]
    return found


def test_whatever_is_watched_is_measured() -> None:
    """An alert on a metric that nobody exports is silent for ever."""
    wrong = {name: faults(text, BY_OPERATOR) for name, text in _expressions().items()}
    assert {name: found for name, found in wrong.items() if found} == {}


def test_the_alerts_are_those_of_docker_compose(tmp_path: Path) -> None:
    """One source: what is told, and after how long, does not depend on where Segue runs."""
    fresh = tmp_path / "alerts.yaml"
    command = [sys.executable, "-m", "scripts.write_kubernetes_alerts", str(fresh)]
    subprocess.run(command, cwd=ROOT, check=True)
    committed = K8S / "overlays" / "observability" / "alerts.yaml"
    assert committed.read_text() == fresh.read_text(), "run `make docs`"
    assert read_manifests(committed)[0]["spec"]["groups"][0]["rules"] == rules()


def test_the_operator_drops_what_prometheus_yml_drops() -> None:
    """Alerts sum over all targets: a request that two pages show is counted twice."""
    (job,) = [one for one in prometheus()["scrape_configs"] if one["job_name"] == "segue-gateway"]
    (dropped,) = job["metric_relabel_configs"]
    (endpoint,) = get(render("observability"), "ServiceMonitor", "segue-gateway")["spec"][
        "endpoints"
    ]
    (relabelling,) = endpoint["metricRelabelings"]
    assert relabelling == {
        "sourceLabels": dropped["source_labels"],
        "regex": dropped["regex"],
        "action": dropped["action"],
    }
