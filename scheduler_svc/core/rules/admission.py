"""The contract of an admission rule: may the head of the waiting queue be looked at further?

Knows nothing about memory or budgets. Invariant: a rule changes nothing.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from scheduler_svc.core.request import Request
from scheduler_svc.core.unified.step_draft import StepDraft


class Verdict(Enum):
    """SKIP: this one waits, others may pass it. STOP: nobody is admitted any more in this step."""

    PASS = "pass"
    SKIP = "skip"
    STOP = "stop"


class AdmissionRule(Protocol):
    def check(self, request: Request, draft: StepDraft) -> Verdict: ...
