"""A KV connector that does what a trace's requests say (FORMAT.md, "KV connector script").

Knows nothing about scheduling. Invariant: it promises external tokens to a request once at most.
"""

from __future__ import annotations

from typing import Any

from scheduler_svc.core.request import Request
from scheduler_svc.core.rules.kv_connector import ExternalHit, KVConnector, TransferReport


class ScriptedConnector(KVConnector):
    def __init__(self) -> None:
        self.sending: set[str] = set()  # finished, and their blocks are still to be sent
        self._remote: dict[str, dict[str, Any]] = {}
        self._num_deferred: dict[str, int] = {}
        self._senders: set[str] = set()
        self._report: TransferReport | None = None

    def add(self, req: dict[str, Any]) -> None:
        """`req` is the request as the trace has it."""
        if "remote" in req:
            self._remote[req["id"]] = req["remote"]
        if req.get("send"):
            self._senders.add(req["id"])

    def report(self, kv: dict[str, Any]) -> None:
        self._report = TransferReport(
            tuple(kv.get("finished_recving", ())),
            tuple(kv.get("finished_sending", ())),
            frozenset(kv.get("invalid_block_ids", ())),
        )

    def look_up(self, request: Request, num_local_tokens: int) -> ExternalHit | None:
        script = self._remote.get(request.request_id)
        if script is None:
            return ExternalHit(0, is_async=False)
        num_deferred = self._num_deferred.get(request.request_id, 0)
        if num_deferred < script.get("defers", 0):
            self._num_deferred[request.request_id] = num_deferred + 1
            return None
        num_external = max(0, script["tokens"] - num_local_tokens)
        return ExternalHit(num_external, is_async=num_external > 0 and bool(script["async"]))

    def allocated(self, request: Request, num_external_tokens: int) -> None:
        if num_external_tokens > 0:
            self._remote.pop(request.request_id, None)

    def keeps_blocks(self, request: Request) -> bool:
        if request.request_id not in self._senders:
            return False
        self.sending.add(request.request_id)
        return True

    def take_report(self) -> TransferReport | None:
        report, self._report = self._report, None
        return report
