"""What a person looks at: traces arrive where Jaeger's API answers."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from segue.tracing import names
from tests.compose.deployment import Deployment
from tests.served import wait_until

pytestmark = pytest.mark.timeout(600)


def ask(deployment: Deployment, index: int) -> None:
    body = {"model": deployment.model, "prompt": "A trace", "max_tokens": 3}
    answer = httpx.post(f"{deployment.gateway_url(index)}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("service", [names.SERVICE_GATEWAY])
def test_a_call_is_found_in_jaeger(deployment: Deployment, service: str) -> None:
    ask(deployment, 0)

    def traces() -> list[Any]:
        url = f"{deployment.jaeger_url()}/api/traces"
        return httpx.get(url, params={"service": service}, timeout=5).json()["data"]

    assert wait_until(traces, f"a trace of {service}", 300)[0]["spans"]


@pytest.mark.parametrize("index", [0, 1])
def test_a_gateway_counts_what_it_serves(deployment: Deployment, index: int) -> None:
    ask(deployment, index)
    page = httpx.get(f"{deployment.gateway_url(index)}/metrics", timeout=5).text
    assert "vllm:" in page
