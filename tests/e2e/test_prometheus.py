"""The repository's Prometheus configuration, alerts and board, on a real Prometheus and real load.

tests/conformance/test_observability.py holds each name to the table of instruments; this holds what
only Prometheus knows: that it can scrape, evaluate, and gets numbers.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from tests.observability_files import board_queries, rules, without_variables
from tests.prometheus_process import MISSING, PrometheusProcess
from tests.served import Served, wait_until

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(MISSING is not None, reason=str(MISSING)),
]
JOBS = {
    "segue-gateway": "gateway-0",
    "segue-scheduler": "scheduler-0",
    "segue-executor": "executor-0",
}
# What a healthy deployment without drafts, refusals and failovers has no number for.
NO_NUMBER = {"Drafts accepted", "Refused", "Failover"}
TIMEOUT_S = 90.0


def keep_asking(url: str, is_over: threading.Event) -> None:
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        while not is_over.is_set():
            stream = client.completions.create(
                model="hand",
                prompt="one two three four five six seven eight",
                n=2,
                max_tokens=16,
                extra_body={"ignore_eos": True},
                stream=True,
            )
            assert list(stream)


@pytest.fixture(scope="module")
def served(hand_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    flags = ["--served-model-name", "hand"]
    running = Served(hand_model, tmp_path_factory.mktemp("serve") / "state", flags)
    yield running
    running.stop()


@pytest.fixture
def prometheus(served: Served, tmp_path: Path, free_port: int) -> Iterator[PrometheusProcess]:
    """Watching `served`, which is asked again and again meanwhile."""
    is_over = threading.Event()
    targets = {job: [served.metrics_url(name).split("/")[2]] for job, name in JOBS.items()}
    running = PrometheusProcess(tmp_path, free_port, targets)
    load = threading.Thread(target=keep_asking, args=(served.url, is_over), daemon=True)
    load.start()
    yield running
    is_over.set()
    load.join()
    running.stop()


def test_board_and_alerts_on_a_served_model(served: Served, prometheus: PrometheusProcess) -> None:
    """One Prometheus for all of it: it needs a few scrapes before a rate is a number."""

    def targets_up() -> bool:
        targets = prometheus.api("targets", state="active")["activeTargets"]
        return len(targets) == len(JOBS) and all(t["health"] == "up" for t in targets)

    wait_until(targets_up, "all targets are up")
    for title, query in board_queries():
        asked = without_variables(query, "hand")
        if title in NO_NUMBER:
            prometheus.values(asked)
            continue
        found = wait_until(lambda q=asked: prometheus.values(q), f"{title}: {asked}", TIMEOUT_S)
        assert all(map(math.isfinite, found)), asked
    (group,) = prometheus.api("rules")["groups"]
    assert [rule["name"] for rule in group["rules"]] == [rule["alert"] for rule in rules()]
    wrong = [(r["name"], r.get("lastError")) for r in group["rules"] if r["health"] != "ok"]
    assert wrong == []
    alerts = prometheus.api("alerts")["alerts"]
    assert [a["labels"]["alertname"] for a in alerts if a["state"] == "firing"] == []


def test_a_killed_scheduler_is_on_the_board(served: Served, prometheus: PrometheusProcess) -> None:
    """The annotation that marks a failover, while the streams go on."""
    (query,) = (without_variables(q, "hand") for title, q in board_queries() if title == "Failover")
    epoch = 'max(segue:epoch{model_name="hand"})'
    (before,) = wait_until(lambda: prometheus.values(epoch), "an epoch is scraped")
    served.wait_restarted("scheduler-0", served.kill("scheduler-0"))
    wait_until(lambda: prometheus.values(query), "the annotation of a failover", TIMEOUT_S)
    assert prometheus.values(epoch)[0] > before
