"""docker-compose.yml, built and up on free ports, under a project name of its own.

Knows compose's command line and container states; what is asked of the services is the tests'.
Invariant: after `remove` none of its containers, networks and volumes is left.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from tests.compose.engine import Engine
from tests.served import wait_until
from tests.source_tree import ROOT

FILES = (ROOT / "docker-compose.yml", ROOT / "tests" / "compose" / "override.yml")
BUILD_TIMEOUT_S = 900
UP_TIMEOUT_S = 600
HEALTHY_TIMEOUT_S = 300


class Deployment:
    """`model` is the name that the API knows it by."""

    def __init__(self, engine: Engine, environ: Mapping[str, str], model: str) -> None:
        self._engine = Engine({**engine.environ, **environ})
        self._project = f"segue-test-{os.getpid()}"
        self._environ = environ
        self.model = model

    def compose(self, *arguments: str, timeout_s: float = 300) -> str:
        files = [part for path in FILES for part in ("--file", str(path))]
        command = ("compose", "--project-name", self._project, *files, *arguments)
        return self._engine.docker(*command, timeout_s=timeout_s)

    def bring_up(self) -> None:
        self.compose("build", "--quiet", timeout_s=BUILD_TIMEOUT_S)
        self.compose("up", "--detach", "--wait", "--quiet-pull", timeout_s=UP_TIMEOUT_S)

    def remove(self) -> None:
        self.compose("down", "--volumes", "--timeout", "5", timeout_s=UP_TIMEOUT_S)

    def gateway_url(self, index: int) -> str:
        return f"http://127.0.0.1:{self._environ[f'GATEWAY_{index}_PORT']}"

    def jaeger_url(self) -> str:
        return f"http://127.0.0.1:{self._environ['JAEGER_PORT']}"

    def sh(self, service: str, line: str) -> str:
        """A shell's output in the service's container, errors included, whatever its exit code."""
        container = self._container(service)
        return self._engine.docker("exec", container, "sh", "-c", f"({line}) 2>&1; true")

    def state(self, service: str) -> dict[str, Any]:
        shown = self._engine.docker("inspect", "-f", "{{json .State}}", self._container(service))
        return json.loads(shown)

    def started_at(self, service: str) -> str:
        """Of its process; sorts by time."""
        return self.state(service)["StartedAt"]

    def kill(self, service: str) -> None:
        """SIGKILL for all of the service's processes.

        From within, so that to Docker it is a crash: what `docker kill` ends is not started again.
        """
        self._engine.succeeds("exec", self._container(service), "sh", "-c", "kill -9 -1")

    def _container(self, service: str) -> str:
        return f"{self._project}-{service}-1"

    def wait_healthy(self, service: str, after: str = "") -> None:
        """Until a process of it that started later than `after` is healthy."""

        def is_healthy() -> bool:
            state = self.state(service)
            is_new = state["StartedAt"] > after
            return is_new and state["Running"] and state["Health"]["Status"] == "healthy"

        wait_until(is_healthy, f"{service} is healthy", HEALTHY_TIMEOUT_S)
