"""docker-compose.yml as compose sees it: variables of .env put in, anchors merged.

Knows YAML and compose's ${NAME} and ${NAME:-default}; knows no service. Invariant: a variable that
neither .env nor a default gives is an error, as it would be an empty string for compose.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from tests.source_tree import ROOT

VARIABLE = re.compile(r"\$\$|\$\{(?P<name>\w+)(?::-(?P<default>[^}]*))?\}")


def read_env_file() -> dict[str, str]:
    lines = (ROOT / ".env").read_text().splitlines()
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    return {name: value for name, _, value in pairs}


def interpolate(text: str, environ: Mapping[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        if found[0] == "$$":
            return "$"
        name, default = found["name"], found["default"]
        return environ[name] if default is None else environ.get(name) or default

    return VARIABLE.sub(value, text)


def read_compose_file(name: str = "docker-compose.yml") -> dict[str, Any]:
    return yaml.safe_load(interpolate((ROOT / name).read_text(), read_env_file()))


def scrape_targets() -> dict[str, list[str]]:
    """Of Prometheus: host:port of each job."""
    config = yaml.safe_load((ROOT / "observability" / "prometheus.yml").read_text())
    return {
        job["job_name"]: [target for one in job["static_configs"] for target in one["targets"]]
        for job in config["scrape_configs"]
    }


def seconds(duration: str) -> float:
    """Of "90s" or "2m"."""
    found = re.fullmatch(r"(\d+)(s|m)", duration)
    assert found, duration
    return int(found[1]) * {"s": 1, "m": 60}[found[2]]
