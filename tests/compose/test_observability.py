"""What a person looks at: traces arrive where Jaeger's API answers."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from segue.tracing import names
from tests.compose.deployment import Deployment
from tests.compose_file import scrape_targets
from tests.served import wait_until

pytestmark = pytest.mark.timeout(600)


def ask(deployment: Deployment, index: int) -> None:
    body = {"model": deployment.model, "prompt": "A trace", "max_tokens": 3}
    answer = httpx.post(f"{deployment.gateway_url(index)}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    "service", [names.SERVICE_GATEWAY, names.SERVICE_SCHEDULER, names.SERVICE_EXECUTOR]
)
def test_a_call_is_found_in_jaeger(deployment: Deployment, service: str) -> None:
    ask(deployment, 0)

    def traces() -> list[Any]:
        url = f"{deployment.jaeger_url()}/api/traces"
        return httpx.get(url, params={"service": service}, timeout=5).json()["data"]

    assert wait_until(traces, f"a trace of {service}", 300)[0]["spans"]


def test_prometheus_would_find_every_target(deployment: Deployment) -> None:
    """Asked from within, where Prometheus would stand."""
    for target in [one for targets in scrape_targets().values() for one in targets]:
        url = f"http://{target}/metrics"
        script = f"import urllib.request as r; print(r.urlopen('{url}').read().decode())"
        assert "# TYPE segue" in deployment.sh("gateway-0", f'python -c "{script}"'), target


def test_all_profiles_are_well_formed(deployment: Deployment) -> None:
    deployment.compose("--profile", "gpu", "--profile", "observability", "config", "--quiet")
