"""At most `max_loras` different adapters in one step (specification 6.6).

One too many is passed over, as in vLLM; or with `max_loras_stops_admission` it closes the step for
all behind it, so that a stream of requests for adapters in use cannot keep it waiting for ever.

Knows nothing about what an adapter is. Invariant: a request without one is never held up; running
requests are not either, since only those served in this step count.
"""

from __future__ import annotations

from scheduler_svc.core.request import Request
from scheduler_svc.core.rules.rule import Rule, Verdict
from scheduler_svc.core.scheduler_config import SchedulerConfig
from scheduler_svc.core.unified.step_draft import StepDraft


class AdapterLimit(Rule):
    def __init__(self, config: SchedulerConfig) -> None:
        self._max_loras = config.max_loras
        self._refusal = Verdict.STOP if config.max_loras_stops_admission else Verdict.SKIP
        self._in_use: set[str] = set()

    def begin_admission(self, draft: StepDraft) -> None:
        self._in_use = {request.submission.adapter for request in draft.running}
        self._in_use.discard("")

    def check(self, request: Request, draft: StepDraft) -> Verdict:
        del draft
        adapter = request.submission.adapter
        if not adapter or adapter in self._in_use or len(self._in_use) < self._max_loras:
            return Verdict.PASS
        return self._refusal

    def scheduled(self, request: Request, draft: StepDraft) -> None:
        del draft
        if request.submission.adapter:
            self._in_use.add(request.submission.adapter)
