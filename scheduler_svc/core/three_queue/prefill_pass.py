"""Admitting those that wait, in order, as far as memory and budget go (specification 4).

Knows nothing about those that run. Invariant: who is admitted has blocks for all of its tokens; who
can never be served is given up, and holds up nobody.
"""

from __future__ import annotations

from scheduler_svc.core.request import Request, RequestStatus
from scheduler_svc.core.three_queue.adapter_limit import AdapterLimit, use_adapter
from scheduler_svc.core.three_queue.block_tables import AllocStatus
from scheduler_svc.core.three_queue.lane_state import LaneState
from scheduler_svc.core.three_queue.padding_limit import PaddingLimit
from scheduler_svc.core.three_queue.prompt_delay import PromptDelay
from scheduler_svc.core.three_queue.step_draft import RowKind, ScheduledRow, StepDraft
from scheduler_svc.core.three_queue.token_count import TokenCount


class PrefillPass:
    def __init__(
        self,
        lane: LaneState,
        token_count: TokenCount,
        adapter_limit: AdapterLimit,
        delay: PromptDelay,
    ) -> None:
        self._lane = lane
        self._config = lane.config
        self._tables = lane.tables
        self._token_count = token_count
        self._adapter_limit = adapter_limit
        self._delay = delay

    def run(self, draft: StepDraft) -> None:
        waiting = self._lane.waiting
        padding = PaddingLimit(self._config.max_paddings)
        put_aside: list[Request] = []
        while self._has_passed_delay() and waiting:
            request = waiting.first
            if request.drains_elsewhere:
                put_aside.append(waiting.pop_first())
                continue
            tokens = self._token_count.of_waiting(request, draft.budget, chunks=draft.chunks)
            status = self._tables.can_allocate(request)
            if sum(tokens) > self._config.prompt_limit or status is AllocStatus.NEVER:
                draft.ignored.append(waiting.pop_first())
                continue
            if status is AllocStatus.LATER:
                break
            if not self._adapter_limit.has_room(request, draft):
                put_aside.append(waiting.pop_first())
                continue
            if not self._fits(tokens, padding, draft):
                break
            waiting.pop_first()
            self._admit(request, tokens, draft)
            padding.add(sum(tokens))
        waiting.put_first(put_aside)
        if draft.new_prefills:
            self._delay.note_prompts()

    def _has_passed_delay(self) -> bool:
        lane = self._lane
        runs_nothing = not lane.running
        return self._delay.has_passed(lane.clock_ms, lane.waiting, runs_nothing=runs_nothing)

    def _fits(self, tokens: tuple[int, int], padding: PaddingLimit, draft: StepDraft) -> bool:
        uncached, _ = tokens
        if uncached == 0 or draft.budget.num_tokens_left <= 0:
            return False
        return draft.budget.can_schedule(uncached) and padding.has_room(sum(tokens))

    def _admit(self, request: Request, tokens: tuple[int, int], draft: StepDraft) -> None:
        uncached, cached = tokens
        self._tables.allocate(request)
        self._tables.register_full_blocks(request, cached + uncached)
        is_resumed = request.status is RequestStatus.PREEMPTED
        kind = RowKind.RESUMED if is_resumed else RowKind.NEW
        draft.new_prefills.append(ScheduledRow(request, kind, True, uncached, num_cached=cached))
        request.status = RequestStatus.RUNNING
        use_adapter(request, draft)
        draft.budget.add_tokens(request.request_id, uncached, cached)
        draft.budget.add_seq(request.request_id)
        if request.num_cached_tokens is None:
            request.num_cached_tokens = cached
