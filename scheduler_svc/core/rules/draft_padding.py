"""One-token admissions get placeholder drafts, so that all decodes of a step have one shape (6.11).

Knows nothing about drafting. Invariant: the placeholders are all rejected, so they cost tokens of
the budget and nothing else.
"""

from __future__ import annotations

from scheduler_svc.core.scheduler_config import SchedulerConfig
from scheduler_svc.core.unified.step_draft import StepDraft


class DraftPadding:
    def __init__(self, config: SchedulerConfig) -> None:
        self._num_spec_tokens = config.num_spec_tokens
        self._max_model_len = config.max_model_len

    def num_drafts(self, num_tokens: int, num_computed: int, draft: StepDraft) -> int:
        """How many placeholder drafts an admission with so many tokens is to have."""
        k = self._num_spec_tokens
        if k == 0 or num_tokens != 1 or draft.has_prefill_chunk:
            return 0
        if not draft.running and num_computed == 0:
            return 0
        return k if num_computed + k + 2 <= self._max_model_len else 0
