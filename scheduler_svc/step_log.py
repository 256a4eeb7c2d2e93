"""One line for each planned step, for `--log-steps`.

Knows nothing about why. Invariant: what it prints comes from the `SchedulerOutput` itself.
"""

from __future__ import annotations

import logging

from scheduler_svc.core.engine_core import EngineCore
from segue.types import SchedulerOutput

log = logging.getLogger("segue.steps")


def step_line(executor_id: str, plan: SchedulerOutput) -> str:
    """For example `e0 step 12 epoch 3: budget left 40, running 2 waiting 0, free 498; a:1 b:7`.

    What there is of it: `swapped 1`, `drafts 4`, and blocks moved `out`, `in` or `copied`.
    """
    stats = plan.stats
    rows = " ".join(f"{r}:{n}" for r, n in plan.num_scheduled_tokens.items()) or "-"
    preempted = f"; preempted {' '.join(plan.preempted_req_ids)}" if plan.preempted_req_ids else ""
    finished = f"; finished {' '.join(plan.finished_req_ids)}" if plan.finished_req_ids else ""
    waiting = f"waiting {stats.num_waiting}"
    if stats.num_swapped:
        waiting += f" swapped {stats.num_swapped}"
    moved = "".join(
        f"; {name} {len(pairs)} blocks"
        for name, pairs in (("out", plan.swap_out), ("in", plan.swap_in), ("copied", plan.copies))
        if pairs
    )
    num_drafts = sum(len(ids) for ids in plan.draft_token_ids.values())
    drafts = f"; drafts {num_drafts}" if num_drafts else ""
    return (
        f"{executor_id} step {plan.step_id} epoch {plan.epoch}: budget left "
        f"{stats.token_budget_left}, running {stats.num_running} {waiting}, "
        f"free {stats.num_free_blocks}; {rows}{drafts}{preempted}{moved}{finished}"
    )


class StepLog:
    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled

    def write(self, core: EngineCore) -> None:
        """Log the steps that the last `plan` made."""
        if not self._enabled:
            return
        for executor_id, step in core.last_plans:
            log.info("%s", step_line(executor_id, step.plan))
