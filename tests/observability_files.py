"""What observability/ asks of Prometheus: the rules of its alerts, the queries of its board.

Knows the files; knows no metric. Invariant: every expression in them is in one of the lists.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import yaml

from tests.source_tree import ROOT

FOLDER = ROOT / "observability"


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def prometheus() -> dict[str, Any]:
    return yaml.safe_load((FOLDER / "prometheus.yml").read_text())


def board() -> dict[str, Any]:
    return json.loads((FOLDER / "grafana" / "dashboards" / "segue.json").read_text())


def board_queries() -> Iterator[tuple[str, str]]:
    """Title and expression of each query, annotations too."""
    for panel in board()["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]
    for annotation in board()["annotations"]["list"]:
        yield annotation["name"], annotation["expr"]


def without_variables(expression: str, model_name: str = "m") -> str:
    """As Grafana sends it: its variables are what PromQL has not."""
    values = {"$__rate_interval": "5m", "$__range": "15m", "$model_name": model_name}
    for name, value in values.items():
        expression = expression.replace(name, value)
    return expression
