"""What a step's span says of its plan.

Knows `SchedulerOutput` and the names; pure. Invariant: everything comes from the plan, so that two
schedulers say the same of the same step.
"""

from __future__ import annotations

from segue.tracing import names
from segue.tracing.ended_span import AttributeValue
from segue.types import SchedulerOutput

PREFILL, DECODE = "prefill", "decode"
Row = tuple[str, str, int]  # request id, phase, scheduled tokens


def rows_of(plan: SchedulerOutput) -> list[Row]:
    """The scheduled requests in order. Decode is one token, and drafts, behind an output."""
    indices, drafts = plan.output_indices, plan.draft_token_ids
    if not (plan.scheduled_new_reqs or plan.scheduled_resumed_reqs or drafts):
        return [
            (request_id, DECODE if num == 1 and indices.get(request_id) else PREFILL, num)
            for request_id, num in plan.num_scheduled_tokens.items()
        ]
    whole = {d.request_id for d in (*plan.scheduled_new_reqs, *plan.scheduled_resumed_reqs)}
    rows: list[Row] = []
    for request_id, num_tokens in plan.num_scheduled_tokens.items():
        is_decode = (
            bool(indices.get(request_id))
            and num_tokens == 1 + len(drafts.get(request_id, ()))
            and request_id not in whole
        )
        rows.append((request_id, DECODE if is_decode else PREFILL, num_tokens))
    return rows


def step_attributes(
    plan: SchedulerOutput, rows: list[Row], num_usable_blocks: int
) -> dict[str, AttributeValue]:
    """All but who planned it, where and how."""
    stats = plan.stats
    num_drafts = sum(len(drafts) for drafts in plan.draft_token_ids.values())
    num_decode = sum([n for _, phase, n in rows if phase is DECODE])
    num_scheduled = plan.total_num_scheduled_tokens
    attributes: dict[str, AttributeValue] = {
        names.STEP_ID: plan.step_id,
        names.EPOCH: plan.epoch,
        names.GENERATION: f"{plan.generation.epoch}.{plan.generation.number}",
        names.STEP_NUM_REQUESTS: len(rows),
        names.NUM_RUNNING: stats.num_running,
        names.NUM_WAITING: stats.num_waiting,
        names.NUM_SWAPPED: stats.num_swapped,
        names.TOKENS_SCHEDULED: num_scheduled,
        names.TOKENS_PREFILL: num_scheduled - num_decode,
        names.TOKENS_DECODE: num_decode - num_drafts,
        names.TOKENS_DRAFT: num_drafts,
        names.TOKENS_BUDGET_LEFT: stats.token_budget_left,
        names.BLOCKS_FREE: stats.num_free_blocks,
        names.BLOCKS_USED: max(0, num_usable_blocks - stats.num_free_blocks),
        names.BLOCKS_CACHED: stats.num_cached_blocks,
    }
    if plan.preempted_req_ids:
        attributes[names.PREEMPTED_IDS] = plan.preempted_req_ids
    if plan.finished_req_ids:
        attributes[names.FINISHED_IDS] = plan.finished_req_ids
    if plan.swap_in or plan.swap_out or plan.copies:
        attributes[names.BLOCKS_SWAPPED_IN] = len(plan.swap_in)
        attributes[names.BLOCKS_SWAPPED_OUT] = len(plan.swap_out)
        attributes[names.BLOCKS_COPIED] = len(plan.copies)
    return attributes


def packed(rows: list[Row]) -> str:
    """One text for all of them: where a link each with three attributes would cost too much."""
    return " ".join([f"{request_id}={phase}:{num}" for request_id, phase, num in rows])
