"""Blocks that a step in flight may still write are freed once it was processed (spec 11.4).

Needed where loads from elsewhere may write a freed block before that step has run. Knows nothing
about connectors. Invariant: blocks come free in the order of the steps that they waited for.
"""

from __future__ import annotations

from scheduler_svc.core.kv_cache_manager import KVCacheManager
from scheduler_svc.core.request import Request
from scheduler_svc.core.rules.rule import Rule
from scheduler_svc.core.unified.step_draft import StepDraft
from segue.types import SchedulerOutput


class DeferredFrees(Rule):
    """Fences count steps in flight that have rows; those without write nothing."""

    def __init__(self, kv: KVCacheManager) -> None:
        self._kv = kv
        self._num_in_flight = 0
        self._waiting: list[tuple[int, list[int]]] = []

    def free(self, request: Request) -> None:
        if request.num_in_flight_tokens == 0:
            self._kv.free(request)
        elif request.block_ids:
            self._waiting.append((self._num_in_flight, self._kv.take_table(request)))

    def planned(self, draft: StepDraft) -> None:
        self._num_in_flight += bool(draft.num_scheduled_tokens)

    def step_processed(self, plan: SchedulerOutput) -> None:
        """The oldest step in flight is being processed, or was cancelled."""
        if not plan.num_scheduled_tokens:
            return
        self._num_in_flight -= 1
        waiting, self._waiting = self._waiting, []
        for fence, table in waiting:
            if fence == 1:
                self._kv.free_table(table)
            else:
                self._waiting.append((fence - 1, table))

    def scalars(self) -> list[list[int]]:
        """Steps in flight; then for each table its fence and block ids."""
        return [[self._num_in_flight], *([fence, *table] for fence, table in self._waiting)]

    def restore(self, scalars: list[list[int]]) -> None:
        self._num_in_flight = scalars[0][0]
        self._waiting = [(fence, table) for fence, *table in scalars[1:]]
