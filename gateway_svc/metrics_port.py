"""Where /metrics may be read: not on a port that several workers share.

Knows ports, no counters. Invariant: who reads one address twice reads the counters of one process.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.types import Scope

from gateway_svc.api_error import not_found


class MetricsPort:
    def __init__(self, ports: Sequence[str] = (), *, is_shared: bool = False) -> None:
        self._ports = {int(port) for port in ports}
        self._is_shared = is_shared

    def check(self, scope: Scope) -> None:
        """Raises ApiError where the connection came in on a shared port."""
        server = scope.get("server")
        if not self._is_shared or (server is not None and server[1] in self._ports):
            return
        where = "is on" if self._ports else "needs --metrics-ports:"
        ports = ", ".join(map(str, sorted(self._ports))) or "one for each worker"
        raise not_found(
            f"workers share this port; /metrics of the one that answers {where} {ports}",
            "metrics_elsewhere",
        )
