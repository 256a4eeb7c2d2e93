"""What an image may do and holds: the least that its service needs."""

from __future__ import annotations

import pytest

from tests.compose.deployment import Deployment

OURS = ("scheduler-0", "scheduler-1", "executor-0", "executor-1", "gateway-0", "gateway-1")


@pytest.mark.parametrize("service", ["scheduler-0", "gateway-0"])
def test_who_computes_nothing_carries_no_torch(deployment: Deployment, service: str) -> None:
    installed = deployment.sh(service, "python -m pip list --format freeze").lower()
    assert "grpcio==" in installed
    assert not any(line.startswith(("torch", "triton")) for line in installed.splitlines())


@pytest.mark.parametrize("service", [*OURS, "redis"])
def test_a_service_is_nobody_and_may_write_nothing(deployment: Deployment, service: str) -> None:
    assert deployment.sh(service, "id -u").strip() in ("10001", "999")
    assert "Read-only file system" in deployment.sh(service, "touch /app-was-here")
    assert "CapEff:\t0000000000000000" in deployment.sh(service, "cat /proc/self/status")


@pytest.mark.parametrize("service", ["executor-0", "gateway-0"])
def test_only_schedulers_find_redis(deployment: Deployment, service: str) -> None:
    """By name; the test's own question is answered where it may be."""
    ask = "python -c 'import socket; print(socket.gethostbyname(\"redis\"))'"
    assert deployment.sh("scheduler-0", ask).strip().count(".") == 3
    assert "gaierror" in deployment.sh(service, ask)


def test_nothing_was_killed_for_memory(deployment: Deployment) -> None:
    assert [name for name in OURS if deployment.state(name)["OOMKilled"]] == []


def test_who_leads_can_be_asked_in_a_scheduler_s_container(deployment: Deployment) -> None:
    schedulers = "scheduler-0:50051,scheduler-1:50051"
    shown = deployment.sh("scheduler-0", f"python -m segue ctl status --scheduler {schedulers}")
    assert "e0" in shown
    assert "e1" in shown
