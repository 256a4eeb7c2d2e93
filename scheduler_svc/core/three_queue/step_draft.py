"""A step while it is being put together: who is in it with what, and who had to go.

Knows nothing about how that is decided. Invariant: a request has one row at most, and none if it
was preempted in this step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from scheduler_svc.core.request import Request
from scheduler_svc.core.three_queue.budget import SchedulingBudget


class RowKind(Enum):
    """RUNNING: the executor has the request, and is told of new blocks at most. REPLACED: it has it
    with another table, not only with a shorter one."""

    NEW = "new"
    RESUMED = "resumed"
    RUNNING = "running"
    REPLACED = "replaced"
    SWAPPED_IN = "swapped_in"


class PreemptionMode(Enum):
    RECOMPUTE = "recompute"
    SWAP = "swap"


@dataclass(slots=True)
class ScheduledRow:
    """`num_tokens` are to be computed; `num_cached` before them are found in the cache."""

    request: Request
    kind: RowKind
    is_prefill: bool
    num_tokens: int
    num_cached: int = 0
    new_block_ids: tuple[int, ...] = ()


@dataclass(slots=True)
class StepDraft:
    """`adapters`: those in use in this step, None if there is no limit to them."""

    budget: SchedulingBudget
    chunks: bool
    adapters: set[str] | None
    new_prefills: list[ScheduledRow] = field(default_factory=list[ScheduledRow])
    running_prefills: list[ScheduledRow] = field(default_factory=list[ScheduledRow])
    swapped_prefills: list[ScheduledRow] = field(default_factory=list[ScheduledRow])
    running_decodes: list[ScheduledRow] = field(default_factory=list[ScheduledRow])
    swapped_decodes: list[ScheduledRow] = field(default_factory=list[ScheduledRow])
    recomputed: list[Request] = field(default_factory=list[Request])
    swapped_out: list[Request] = field(default_factory=list[Request])
    preemptions: list[tuple[str, PreemptionMode]] = field(
        default_factory=list[tuple[str, PreemptionMode]]
    )
    swap_out: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    swap_in: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    ignored: list[Request] = field(default_factory=list[Request])
    rows: list[ScheduledRow] = field(default_factory=list[ScheduledRow])
    num_lookahead_slots: int = 0
    fresh_block_ids: set[int] = field(default_factory=set[int])  # registered in this step

    @property
    def is_anything_done(self) -> bool:
        return bool(self.rows or self.preemptions)

    @property
    def num_prefills(self) -> int:
        return len(self.new_prefills) + len(self.running_prefills) + len(self.swapped_prefills)

    @property
    def has_preempted(self) -> bool:
        """Whether the running pass had to; forced preemptions by priority do not count."""
        return bool(self.recomputed or self.swapped_out)

    def order_batch(self) -> None:
        """Prefills before decodes; with an adapter in the batch, by adapter within each."""
        prefills = [*self.new_prefills, *self.running_prefills, *self.swapped_prefills]
        decodes = [*self.running_decodes, *self.swapped_decodes]
        if self.adapters is not None and any(
            row.request.submission.adapter for row in (*prefills, *decodes)
        ):
            prefills.sort(key=_adapter_order)
            decodes.sort(key=_adapter_order)
        self.rows = [*prefills, *decodes]


def _adapter_order(row: ScheduledRow) -> tuple[int, str, str]:
    """Numbers as names in the order of the numbers; no adapter comes first."""
    adapter = row.request.submission.adapter
    return len(adapter), adapter, row.request.request_id
