"""At most so many adapters in a step: who would bring one more is set aside (specification 4.4).

Knows nothing about what an adapter is. Invariant: those set aside keep their order.
"""

from __future__ import annotations

from scheduler_svc.core.request import Request
from scheduler_svc.core.three_queue.step_draft import StepDraft


class AdapterLimit:
    """`max_loras` 0: no limit, and no adapters are counted."""

    def __init__(self, max_loras: int) -> None:
        self._max_loras = max_loras

    def in_use(self, running: list[Request]) -> set[str] | None:
        """The adapters to begin with."""
        if not self._max_loras:
            return None
        return {request.submission.adapter for request in running} - {""}

    def has_room(self, request: Request, draft: StepDraft) -> bool:
        adapter, in_use = request.submission.adapter, draft.adapters
        if in_use is None or not adapter or adapter in in_use:
            return True
        return len(in_use) < self._max_loras


def use_adapter(request: Request, draft: StepDraft) -> None:
    if draft.adapters is not None and request.submission.adapter:
        draft.adapters.add(request.submission.adapter)
