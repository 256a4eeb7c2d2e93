"""Every query of observability/ names what there is: metrics of the table, by labels they have."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from segue.instruments import INSTRUMENTS
from tests.observability_files import (
    FOLDER,
    board,
    board_queries,
    prometheus,
    rules,
    without_variables,
)
from tests.promql import names_in
from tests.query_faults import faults

DATA_SOURCE = "segue-prometheus"


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alert_names_what_there_is(rule: dict[str, Any]) -> None:
    assert faults(rule["expr"]) == []
    assert rule["annotations"]["summary"]


@pytest.mark.parametrize("title,expression", list(board_queries()))
def test_a_panel_names_what_there_is(title: str, expression: str) -> None:
    assert names_in(expression).metrics, title
    assert faults(expression) == []


def test_a_query_that_names_nothing_of_ours_is_a_fault() -> None:
    assert faults('sum by (colour) (rate(segue:steps{epoch="1"}[5m])) > 0') != []
    assert faults('rate(segue:steps_total{epoch="1"}[5m])') == [
        "segue:steps_total has no label epoch"
    ]
    assert faults("sum by (engine) (segue:steps_total)") == ["nothing has the label engine"]
    assert faults("histogram_quantile(0.9, rate(segue:steps_total[5m])) or vllm:none") == [
        "vllm:none is not in the table"
    ]


def test_the_issue_asked_for_these_alerts() -> None:
    asked = ("NoProgress", "PreemptionStorm", "QueueAge", "Failover", "CommitSlow")
    assert {f"Segue{name}" for name in asked} <= {rule["alert"] for rule in rules()}


def test_an_alert_is_played_through_for_each_rule() -> None:
    played = (FOLDER / "alerts_test.yml").read_text()
    assert [rule["alert"] for rule in rules() if rule["alert"] not in played] == []


@pytest.mark.timeout(60)
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not on the PATH")
@pytest.mark.parametrize(
    "command", [("check", "config", "prometheus.yml"), ("test", "rules", "alerts_test.yml")]
)
def test_promtool_agrees(command: tuple[str, ...]) -> None:
    done = subprocess.run(
        ["promtool", *command], cwd=FOLDER, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(60)
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not on the PATH")
def test_promtool_reads_each_query_of_the_board(tmp_path: Path) -> None:
    """As rules: Grafana's variables are what the language has not."""
    records = [
        {"record": f"board:{number}", "expr": without_variables(expression)}
        for number, (_, expression) in enumerate(board_queries())
    ]
    path = tmp_path / "board.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "board", "rules": records}]}))
    done = subprocess.run(
        ["promtool", "check", "rules", path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_target_is_a_service_on_its_port() -> None:
    """The ports that docker-compose.yml and the manifests give /metrics."""
    jobs = prometheus()["scrape_configs"]
    ports = {"gateway": "8000", "scheduler": "9090", "executor": "9091"}
    targets = [t for job in jobs for config in job["static_configs"] for t in config["targets"]]
    assert sorted(targets) == sorted(
        f"{name}-{i}:{port}" for name, port in ports.items() for i in (0, 1)
    )


def test_gateways_gauges_are_dropped_where_the_scheduler_says_them() -> None:
    """Else a sum over all targets counts each request twice."""
    jobs = prometheus()["scrape_configs"]
    (job,) = [job for job in jobs if job["job_name"] == "segue-gateway"]
    (relabelling,) = job["metric_relabel_configs"]
    services: dict[str, set[str]] = {}
    for row in INSTRUMENTS:
        services.setdefault(row.name, set()).add(row.service.value)
    doubled = sorted(name for name, owners in services.items() if len(owners) > 1)
    stem, _, names = relabelling["regex"].partition("(")
    assert sorted(stem + name for name in names.rstrip(")").split("|")) == doubled


def test_grafana_is_told_where_the_board_and_its_data_are() -> None:
    provisioning = FOLDER / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())[
        "datasources"
    ]
    assert source["uid"] == DATA_SOURCE
    used = {p["datasource"]["uid"] for p in board()["panels"] if "datasource" in p}
    assert used == {DATA_SOURCE}
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "segue.yml").read_text())[
        "providers"
    ]
    assert provider["options"]["path"] == "/var/lib/grafana/dashboards"
