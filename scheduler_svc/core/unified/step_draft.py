"""The step that is being planned: what is left of the budgets, and what was decided so far.

Knows nothing about queues. Invariant: the tokens scheduled and the budgets left add up to the
budgets at the start, also after a decision was undone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduler_svc.core.request import Request


@dataclass(slots=True)
class StepDraft:
    """`token_budget` bounds the tokens of the step; `input_budget` also the slots for drafts.

    `put_aside`: waiting requests that were passed over, or began to load, in this pass.
    """

    step_counter: int
    token_budget: int
    input_budget: int
    long_prefill_cap: int  # 0: none
    num_scheduled_tokens: dict[str, int] = field(default_factory=dict[str, int])
    running: list[Request] = field(default_factory=list[Request])
    new: list[Request] = field(default_factory=list[Request])
    resumed: list[Request] = field(default_factory=list[Request])
    new_blocks: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    drafts: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    registered_before: dict[str, int] = field(default_factory=dict[str, int])
    preempted: list[Request] = field(default_factory=list[Request])
    put_aside: list[Request] = field(default_factory=list[Request])
    encoder_inputs: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    freed_encoder_hashes: list[str] = field(default_factory=list[str])
    is_admitting: bool = True  # not paused: requests that wait may be admitted
    has_prefill_chunk: bool = False
    has_sync_load: bool = False

    def spend(self, request_id: str, num_tokens: int, draft_slots: int) -> None:
        self.num_scheduled_tokens[request_id] = num_tokens
        self.token_budget -= num_tokens
        self.input_budget -= num_tokens + draft_slots

    def undo(self, request: Request, draft_slots: int) -> None:
        """Give back what a running request was given in this step."""
        num_tokens = self.num_scheduled_tokens.pop(request.request_id)
        self.token_budget += num_tokens
        self.input_budget += num_tokens + draft_slots
        self.running.remove(request)
        self.new_blocks.pop(request.request_id, None)
        self.drafts.pop(request.request_id, None)
