"""Bringing back those that were swapped out, first out first in (specification 6).

Knows nothing about those that wait. Invariant: runs only in a step that swaps nobody out.
"""

from __future__ import annotations

from scheduler_svc.core.request import Request, RequestStatus
from scheduler_svc.core.three_queue.adapter_limit import AdapterLimit, use_adapter
from scheduler_svc.core.three_queue.block_tables import AllocStatus
from scheduler_svc.core.three_queue.lane_state import LaneState
from scheduler_svc.core.three_queue.step_draft import RowKind, ScheduledRow, StepDraft
from scheduler_svc.core.three_queue.token_count import TokenCount


class SwappedPass:
    """Repairs, unless `strict`: V0 leaks the CPU blocks of a request that it gives up; and it waits
    for ever with the rest of a prompt that is larger than a step."""

    def __init__(
        self, lane: LaneState, token_count: TokenCount, adapter_limit: AdapterLimit
    ) -> None:
        self._lane = lane
        self._config = lane.config
        self._tables = lane.tables
        self._token_count = token_count
        self._adapter_limit = adapter_limit

    def run(self, draft: StepDraft) -> None:
        assert not draft.swap_out
        swapped = self._lane.swapped
        put_aside: list[Request] = []
        while swapped:
            request = swapped.first
            status = self._tables.can_swap_in(request, self._num_lookahead(request))
            if status is AllocStatus.LATER:
                break
            if status is AllocStatus.NEVER:
                swapped.pop_first()
                self._give_up(request, draft)
                continue
            if not self._adapter_limit.has_room(request, draft):
                put_aside.append(swapped.pop_first())
                continue
            num_tokens = self._num_tokens(request, draft)
            if num_tokens == 0 or not draft.budget.can_schedule(num_tokens):
                break
            swapped.pop_first()
            self._bring_back(request, num_tokens, draft)
        swapped.put_first(put_aside)

    def _num_tokens(self, request: Request, draft: StepDraft) -> int:
        """Not chunked: all that is left of a prompt has to fit."""
        budget = draft.budget
        num_tokens = self._token_count.of_started(request, budget, chunks=False)
        if num_tokens > budget.token_budget and not self._config.strict:
            return self._token_count.of_started(request, budget, chunks=True)
        return num_tokens

    def _bring_back(self, request: Request, num_tokens: int, draft: StepDraft) -> None:
        draft.swap_in += self._tables.swap_in(request)
        self._tables.append(request, self._num_lookahead(request))
        num_computed = request.num_computed_tokens + num_tokens
        self._tables.register_full_blocks(request, num_computed)
        request.status = RequestStatus.RUNNING
        row = ScheduledRow(request, RowKind.SWAPPED_IN, request.is_prefill_chunk, num_tokens)
        (draft.swapped_prefills if row.is_prefill else draft.swapped_decodes).append(row)
        use_adapter(request, draft)
        draft.budget.add_tokens(request.request_id, num_tokens)
        draft.budget.add_seq(request.request_id)

    def _give_up(self, request: Request, draft: StepDraft) -> None:
        draft.ignored.append(request)
        if self._config.strict:
            del self._tables.cpu_tables[request.request_id]

    def _num_lookahead(self, request: Request) -> int:
        return 0 if request.is_prefill_chunk else self._config.num_lookahead_slots
