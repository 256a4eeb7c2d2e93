"""A preempted request waits until its output in flight has come (specification 6.5).

Knows nothing about why it was preempted. Invariant: a request that is admitted gets no output any
more that was planned before, unless that is to be dropped and comes from the same lane, in order.
"""

from __future__ import annotations

from scheduler_svc.core.request import Request
from scheduler_svc.core.rules.rule import Rule, Verdict
from scheduler_svc.core.unified.step_draft import StepDraft


class StaleOutputWait(Rule):
    def check(self, request: Request, draft: StepDraft) -> Verdict:
        del draft
        return Verdict.SKIP if waits_for_output(request) else Verdict.PASS


def waits_for_output(request: Request) -> bool:
    if request.num_stale_output_tokens == 0:
        return False
    return request.drains_elsewhere or not request.drop_stale_output
