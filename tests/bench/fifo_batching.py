"""Batching as it was before continuous batching: a batch runs until all of it is done.

A comparator. Like all that came before paging, it sets aside the memory that a request may come to
need, its whole limit of tokens, so it never preempts. Otherwise it is favoured: it starts prompts
in chunks like `unified`, whose machinery it is, and who has ended costs nothing any more, where a
padded batch would carry it on.

Knows nothing about time. Invariant: nobody is admitted to a batch that is complete.
"""

from __future__ import annotations

from typing import Any

from scheduler_svc.core.block_pool import BlockRow
from scheduler_svc.core.request import Request
from scheduler_svc.core.rules.rule import Rule, Verdict
from scheduler_svc.core.unified.lane_state import LaneState
from scheduler_svc.core.unified.scheduler import UnifiedScheduler
from scheduler_svc.core.unified.step_draft import StepDraft


class WholeBatch(Rule):
    """Prompts of a batch may take several steps; a step that had tokens to spare completes it."""

    def __init__(self, lane: LaneState) -> None:
        self._lane = lane
        self.is_open = True

    def begin_admission(self, draft: StepDraft) -> None:
        del draft
        self.is_open = self.is_open or not self._lane.running

    def check(self, request: Request, draft: StepDraft) -> Verdict:
        del draft
        return Verdict.PASS if self.is_open and self._fits(request) else Verdict.STOP

    def end_admission(self, draft: StepDraft) -> None:
        if draft.token_budget:
            self.is_open = False

    def _fits(self, request: Request) -> bool:
        """To its limit, beside all of the batch to theirs."""
        kv = self._lane.kv
        batch = (*self._lane.running, request)
        num_needed = sum(kv.num_blocks_for(one.max_total_tokens) for one in batch)
        return num_needed <= self._lane.config.num_usable_blocks


class FifoBatching(UnifiedScheduler):
    """Can be served, too: `segue serve --policy tests.bench.fifo_batching:FifoBatching`."""

    def extra_rules(self) -> list[Rule]:
        self._batch = WholeBatch(self.lane)
        return [self._batch]

    def scalars(self) -> dict[str, Any]:
        return super().scalars() | {"batch_is_open": self._batch.is_open}

    def restore(
        self, queued: list[Request], blocks: list[BlockRow], scalars: dict[str, Any]
    ) -> None:
        super().restore(queued, blocks, scalars)
        self._batch.is_open = bool(scalars["batch_is_open"])
