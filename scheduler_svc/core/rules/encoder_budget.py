"""Multimodal items are computed within a budget for each step, and cached (specification 12).

Knows nothing about what an item shows. Invariant: a request never gets tokens of an item whose
embeddings are neither cached nor computed in the same step.
"""

from __future__ import annotations

from scheduler_svc.core.request import MultiModalItem, Request
from scheduler_svc.core.rules.encoder_cache import EncoderCache
from scheduler_svc.core.rules.rule import Rule
from scheduler_svc.core.scheduler_config import SchedulerConfig
from scheduler_svc.core.unified.step_draft import StepDraft


class EncoderBudget(Rule):
    def __init__(self, config: SchedulerConfig) -> None:
        self._budget_per_step = config.encoder_compute_budget
        self._may_split_items = not config.disable_chunked_mm_input
        self._budget = 0
        self._chosen: list[int] = []  # items of the request that was looked at last
        self._budget_after = 0
        self._cache = EncoderCache(config.encoder_cache_size)

    def begin_step(self, draft: StepDraft) -> None:
        del draft
        self._budget = self._budget_per_step

    def clamp(self, request: Request, num_computed: int, num_tokens: int) -> int:
        """Choose the items to compute with these tokens, or end before one that has no room."""
        self._chosen = []
        self._budget_after = self._budget
        if num_tokens == 0:
            return 0
        hashes: set[str] = set()
        num_embeddings = 0
        for index, item in enumerate(request.mm_items):
            if item.offset >= num_computed + num_tokens:
                break
            if item.offset + item.length <= num_computed:
                continue
            if self._would_split(item, num_computed, num_tokens):
                return item.offset - num_computed
            if item.item_hash in hashes:
                self._cache.hold_again(request, index)
                continue
            if self._cache.hold_if_cached(request, index):
                continue
            if not self._has_room(item, num_embeddings):
                return max(0, item.offset - num_computed)
            num_embeddings += item.length
            self._budget_after -= item.length
            hashes.add(item.item_hash)
            self._chosen.append(index)
        return num_tokens

    def scheduled(self, request: Request, draft: StepDraft) -> None:
        if not self._chosen:
            return
        draft.encoder_inputs[request.request_id] = self._chosen
        for index in self._chosen:
            self._cache.add(request, index)
        self._budget = self._budget_after
        self._chosen = []

    def undone(self, request: Request, draft: StepDraft) -> None:
        for index in draft.encoder_inputs.pop(request.request_id, ()):
            self._budget += request.mm_items[index].length

    def planned(self, draft: StepDraft) -> None:
        draft.freed_encoder_hashes = self._cache.take_evicted()

    def processed(self, request: Request) -> None:
        num_processed = request.num_computed_tokens - request.num_in_flight_tokens
        for index in self._cache.held(request):
            item = request.mm_items[index]
            if item.offset + item.length <= num_processed:
                self._cache.release(request, index)

    def left(self, request: Request) -> None:
        for index in self._cache.held(request):
            self._cache.release(request, index)

    def forget_all(self) -> None:
        self._cache.clear()

    def _would_split(self, item: MultiModalItem, num_computed: int, num_tokens: int) -> bool:
        if self._may_split_items or num_computed >= item.offset:
            return False
        return num_computed + num_tokens < item.offset + item.length

    def _has_room(self, item: MultiModalItem, num_chosen: int) -> bool:
        if item.length > self._budget_after:
            return False
        return self._cache.make_room(item.length + num_chosen)
