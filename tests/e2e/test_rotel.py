"""Our spans through a collector that is not ours: rotel's OTLP, in and out again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from segue.serve_plan import free_ports
from segue.tracing import names
from tests.otlp_receiver import OtlpReceiver
from tests.otlp_spans import ReceivedSpan
from tests.rotel_process import RotelProcess, rotel_agent
from tests.served import ONE_THREAD, Served, wait_until
from tests.span_checks import exported_twice, unresolved_links, unresolved_parents

AGENT = rotel_agent()
pytestmark = pytest.mark.skipif(
    AGENT is None, reason="rotel is not installed (SEGUE_ROTEL_AGENT names one)"
)
NUM_REQUESTS, NUM_CHOICES = 6, 2


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as running:
        yield running


@pytest.fixture
def collector(receiver: OtlpReceiver, tmp_path: Path) -> Iterator[RotelProcess]:
    assert AGENT is not None
    first, second = free_ports(2)
    endpoint = receiver.environ["OTEL_EXPORTER_OTLP_ENDPOINT"]
    running = RotelProcess(AGENT, tmp_path, (first, second), endpoint)
    yield running
    running.stop()


def ask(served: Served, number: int) -> None:
    body = {"model": served.model, "prompt": f"request {number}", "max_tokens": 9}
    body |= {"n": NUM_CHOICES, "ignore_eos": True}
    answer = httpx.post(f"{served.url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_every_span_arrives_behind_it(
    hand_model: Path, tmp_path: Path, receiver: OtlpReceiver, collector: RotelProcess, protocol: str
) -> None:
    port = collector.grpc_port if protocol == "grpc" else collector.http_port
    environ = {
        **ONE_THREAD,
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
    }
    served = Served(hand_model, tmp_path / "state", (), environ)
    try:
        for number in range(NUM_REQUESTS):
            ask(served, number)
        num_steps = int(served.metrics("scheduler-0")["segue:steps_total"])
    finally:
        served.stop()

    def named(name: str) -> list[ReceivedSpan]:
        return [span for span in receiver.store.all() if span.name == name]

    def all_there() -> bool:
        return len(named("execute_model")) >= num_steps and len(named("engine.step")) >= num_steps

    wait_until(all_there, f"{num_steps} steps arrive")
    spans = receiver.store.all()
    assert len(named("request")) == NUM_REQUESTS * NUM_CHOICES
    services = {names.SERVICE_GATEWAY, names.SERVICE_SCHEDULER, names.SERVICE_EXECUTOR}
    assert {span.service for span in spans} == services
    assert exported_twice(spans) == []
    assert unresolved_parents(spans) == []
    assert unresolved_links(spans) == []
