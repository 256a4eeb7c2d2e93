"""docker-compose.yml against the code: flags, ports, addresses, health checks, graces, hardening.

Needs no Docker. Each test names every offender.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

import pytest

from executor_svc.config import ExecutorServiceConfig
from executor_svc.process import STOP_GRACE_S as EXECUTOR_STOP_GRACE_S
from gateway_svc.__main__ import CLOSE_GRACE_S
from gateway_svc.app import make_app
from gateway_svc.config import GatewayConfig
from scheduler_svc.__main__ import STOP_GRACE_S as SCHEDULER_STOP_GRACE_S
from scheduler_svc.config import SchedulerServiceConfig
from segue.config import parse_config
from segue.grpc_server import EXECUTOR_SERVICE, SCHEDULER_SERVICE
from segue.version import VERSION
from tests.compose_file import read_compose_file, read_env_file, scrape_targets, seconds
from tests.source_tree import ROOT

Service = dict[str, Any]
FILE = read_compose_file()
TEXT = (ROOT / "docker-compose.yml").read_text()
SERVICES: dict[str, Service] = FILE["services"]
CONFIGS = {
    "scheduler": SchedulerServiceConfig,
    "executor": ExecutorServiceConfig,
    "gateway": GatewayConfig,
}
OURS = [name for name in SERVICES if name.partition("-")[0] in CONFIGS]
# Of libraries, not of Segue.
FOREIGN_VARIABLES = {"OMP_NUM_THREADS", "OTEL_EXPORTER_OTLP_ENDPOINT"}


def kind(name: str) -> str:
    return name.partition("-")[0]


def config(name: str) -> Any:
    """As the service itself would read it in its container."""
    service = SERVICES[name]
    return parse_config(CONFIGS[kind(name)], service["command"], service["environment"])


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def names_of(kind_: str) -> list[str]:
    return [name for name in OURS if kind(name) == kind_]


def test_everybody_is_there() -> None:
    assert set(SERVICES) >= {"redis", "jaeger", "model", "scheduler-0", "scheduler-1"}
    assert set(SERVICES) >= {"executor-0", "executor-1", "gateway-0", "gateway-1"}


@pytest.mark.parametrize("name", OURS)
def test_a_service_takes_its_flags_and_variables(name: str) -> None:
    fields = set(CONFIGS[kind(name)].__dataclass_fields__)
    variables = set(SERVICES[name]["environment"]) - FOREIGN_VARIABLES
    assert {one for one in variables if one.removeprefix("SEGUE_").lower() not in fields} == set()
    assert all(one.startswith("SEGUE_") for one in variables)
    assert config(name)


@pytest.mark.parametrize("name", OURS)
def test_an_image_runs_the_service(name: str) -> None:
    target = SERVICES[name]["image"].partition(":")[0].removeprefix("segue/")
    stage = docker_stage(target)
    package = f"{kind(name)}_svc"
    assert target.partition("-")[0] == kind(name)
    assert f'ENTRYPOINT ["python", "-m", "{package}"]' in stage
    assert f"COPY {package} {package}" in stage


def docker_stage(target: str) -> str:
    """The lines of a stage of the Dockerfile, after those of the stage that it is made from."""
    stages = re.split(r"^FROM ", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    for stage in stages[1:]:
        base, _, name = stage.partition("\n")[0].partition(" AS ")
        if name == target:
            return ("" if base.startswith("$") else docker_stage(base)) + stage
    raise AssertionError(f"the Dockerfile has no target {target}")


@pytest.mark.parametrize("name", [name for name in OURS if kind(name) != "gateway"])
def test_others_are_told_where_it_listens(name: str) -> None:
    host, _, port = config(name).advertise.rpartition(":")
    assert (host, int(port)) == (name, port_of(config(name).listen))


def test_identities_are_all_different() -> None:
    for kind_, field in (("scheduler", "scheduler_id"), ("executor", "executor_id")):
        ids = [getattr(config(name), field) for name in names_of(kind_)]
        assert len(set(ids)) == len(ids)
    assert len({config(name).gateway_id for name in names_of("gateway")}) == 2


@pytest.mark.parametrize("name", names_of("executor") + names_of("gateway"))
def test_it_knows_every_scheduler(name: str) -> None:
    assert set(config(name).schedulers) == {config(one).advertise for one in names_of("scheduler")}


@pytest.mark.parametrize("name", names_of("scheduler"))
def test_a_scheduler_finds_redis(name: str) -> None:
    assert urlsplit(config(name).redis_url).hostname == "redis"
    assert "state" in SERVICES["redis"]["networks"]
    assert "state" in SERVICES[name]["networks"]


def test_nobody_else_reaches_redis() -> None:
    assert FILE["networks"]["state"]["internal"]
    members = {name for name, one in SERVICES.items() if "state" in one.get("networks", [])}
    assert members == {"redis", *names_of("scheduler")}
    assert SERVICES["redis"]["networks"] == ["state"]


@pytest.mark.parametrize("name", OURS)
def test_the_image_exposes_what_is_served(name: str) -> None:
    found = config(name)
    served = (
        {found.port} if kind(name) == "gateway" else {port_of(found.listen), found.metrics_port}
    )
    (line,) = re.findall(r"^EXPOSE (.*)$", docker_stage(kind(name)), re.MULTILINE)
    assert set(map(int, line.split())) == served


@pytest.mark.parametrize("name", names_of("gateway"))
def test_a_gateway_is_published_where_it_listens(name: str) -> None:
    (published,) = SERVICES[name]["ports"]
    assert port_of(published) == config(name).port
    assert config(name).host == "0.0.0.0"


@pytest.mark.parametrize("name", OURS)
def test_the_health_check_asks_the_right_question(name: str) -> None:
    """tests/integration/test_health_check.py runs the command against real servers."""
    _, python, flag, module, target = SERVICES[name]["healthcheck"]["test"]
    assert (python, flag, module) == ("python", "-m", "segue.health_check")
    found = config(name)
    expected = {
        "scheduler": lambda: f"127.0.0.1:{port_of(found.listen)}/{SCHEDULER_SERVICE}",
        "executor": lambda: f"127.0.0.1:{port_of(found.listen)}/{EXECUTOR_SERVICE}",
        "gateway": lambda: f"http://127.0.0.1:{found.port}/ready",
    }
    assert target == expected[kind(name)]()
    assert '"/ready"' in (ROOT / f"{make_app.__module__.replace('.', '/')}.py").read_text()


def test_prometheus_asks_every_service_where_it_answers() -> None:
    served = {
        f"{name}:{config(name).port if kind(name) == 'gateway' else config(name).metrics_port}"
        for name in OURS
        if "profiles" not in SERVICES[name]
    }
    assert set().union(*scrape_targets().values()) == served


@pytest.mark.parametrize("name", SERVICES)
def test_what_is_mounted_from_here_is_here(name: str) -> None:
    volumes = [volume.split(":") for volume in SERVICES[name].get("volumes", [])]
    mounted = [volume for volume in volumes if volume[0].startswith(".")]
    assert [volume for volume in mounted if not (ROOT / volume[0]).exists()] == []
    assert all(volume[2] == "ro" for volume in mounted)
    named = {volume[0] for volume in volumes if not volume[0].startswith(".")}
    assert named <= set(FILE["volumes"])


@pytest.mark.parametrize("name", OURS)
def test_the_stop_grace_is_longer_than_the_drain(name: str) -> None:
    found = config(name)
    drain = {
        "scheduler": SCHEDULER_STOP_GRACE_S,
        "executor": getattr(found, "drain_grace_s", 0) + EXECUTOR_STOP_GRACE_S,
        "gateway": getattr(found, "drain_grace_s", 0) + CLOSE_GRACE_S,
    }[kind(name)]
    assert seconds(SERVICES[name]["stop_grace_period"]) > drain + 2


@pytest.mark.parametrize("name", OURS)
def test_who_is_needed_is_waited_for(name: str) -> None:
    waits = {one: how["condition"] for one, how in SERVICES[name]["depends_on"].items()}
    if kind(name) == "scheduler":
        assert waits == {"redis": "service_healthy"}
    else:
        healthy = dict.fromkeys(names_of("scheduler"), "service_healthy")
        assert waits == {**healthy, "model": "service_completed_successfully"}


@pytest.mark.parametrize("name", SERVICES)
def test_a_container_may_do_the_least(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service
    assert "ulimits" not in service  # above the machine's own they can not be set
    assert set(service["deploy"]["resources"]["limits"]) == {"cpus", "memory", "pids"}
    assert "stop_grace_period" in service or name == "model"
    assert "healthcheck" in service or name == "model"


@pytest.mark.parametrize("name", SERVICES)
def test_nobody_is_root(name: str) -> None:
    image = SERVICES[name]["image"]
    if image.startswith("segue/"):
        stage = docker_stage(image.partition(":")[0].removeprefix("segue/"))
        assert stage.rstrip().rpartition("USER ")[2].startswith("10001:10001")
    else:
        assert int(SERVICES[name]["user"].partition(":")[0]) > 0


@pytest.mark.parametrize("name", SERVICES)
def test_an_image_has_a_version(name: str) -> None:
    tag = SERVICES[name]["image"].rpartition(":")[2]
    assert re.search(r"\d", tag)
    assert tag != "latest"


def test_env_is_the_one_list() -> None:
    """Each of its lines is used; no image, no port and no address of Segue's stands elsewhere."""
    used = set(re.findall(r"\$\{(\w+)", TEXT))
    assert set(read_env_file()) - used == set()
    assert used - set(read_env_file()) == {"HEALTH_INTERVAL"}
    assert read_env_file()["SEGUE_TAG"] == VERSION
    images = re.findall(r"^ +image: (.*)$", TEXT, re.MULTILINE)
    assert [one for one in images if "${" not in one] == []
    published = re.findall(r"^ +ports: (.*)$", TEXT, re.MULTILINE)
    assert [one for one in published if not re.match(r'\["\$\{BIND_ADDRESS\}:\$\{', one)] == []


def test_no_build_asks_a_registry_for_more_than_its_base() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    bases = [line.split()[1] for line in lines if line.startswith("FROM ")]
    stages = {line.split()[3] for line in lines if line.startswith("FROM ")}
    assert not any(line.startswith("# syntax=") for line in lines)
    assert set(bases) - stages == {"${PYTHON_IMAGE}"}
    (default,) = [line for line in lines if line.startswith("ARG PYTHON_IMAGE=")]
    assert default.partition("=")[2] == read_env_file()["PYTHON_IMAGE"]


def test_each_image_is_built_once() -> None:
    """Two services that build one image at a time would each build it."""
    built = [one["image"] for one in SERVICES.values() if "build" in one]
    assert len(set(built)) == len(built)
    ours = {one["image"] for one in SERVICES.values() if one["image"].startswith("segue/")}
    assert set(built) == ours
