"""A request that sampled sits out until its token passed all pipeline stages (specification 10).

Knows nothing about stages themselves. Invariant: with one stage it changes nothing.
"""

from __future__ import annotations

from scheduler_svc.core.request import Request
from scheduler_svc.core.rules.rule import Rule
from scheduler_svc.core.unified.step_draft import StepDraft


class PipelineStagger(Rule):
    def __init__(self, pipeline_parallel_size: int) -> None:
        self._interval_steps = pipeline_parallel_size

    def may_run(self, request: Request, draft: StepDraft) -> bool:
        return draft.step_counter >= request.next_decode_eligible_step

    def samples(self, request: Request, draft: StepDraft) -> None:
        request.next_decode_eligible_step = draft.step_counter + self._interval_steps
