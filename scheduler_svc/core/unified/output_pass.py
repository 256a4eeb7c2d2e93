"""Taking a step's result: tokens appended, requests ended, drafts counted (specification 13).

Knows nothing about planning. Invariant (rule 5): a token is taken only at the index that was fixed
for it when its step was planned, which is the number of outputs the request has.
"""

from __future__ import annotations

from collections.abc import Callable

from scheduler_svc.core.request import Request, RequestStatus
from scheduler_svc.core.stop_check import check_stop
from scheduler_svc.core.unified.lane_state import LaneState
from segue.types import (
    Finish,
    ModelRunnerOutput,
    RequestOutput,
    SchedulerOutput,
    TokenLogprobs,
)

FinishForeign = Callable[[Request, Finish, int], None]


class OutputPass:
    def __init__(self, lane: LaneState, requests: dict[str, Request], lane_id: str) -> None:
        self._lane = lane
        self._requests = requests
        self._lane_id = lane_id
        self._max_model_len = lane.config.max_model_len
        self._is_async = lane.config.async_scheduling

    def run(
        self,
        plan: SchedulerOutput,
        result: ModelRunnerOutput,
        now_ms: int,
        finish_foreign: FinishForeign,
    ) -> list[RequestOutput]:
        rows = {request_id: index for index, request_id in enumerate(result.request_ids)}
        outputs: list[RequestOutput] = []
        for request_id, num_scheduled in plan.num_scheduled_tokens.items():
            request = self._requests.get(request_id)
            if request is None:
                continue
            is_stale, is_dropped = self.settle(request, num_scheduled)
            row = rows.get(request_id)
            if request.is_finished or is_dropped or row is None:
                continue
            tokens = result.sampled_token_ids[row]
            if not is_stale:
                num_drafts = len(plan.draft_token_ids.get(request_id, ()))
                self._count_drafts(request, num_drafts, len(tokens))
            assert result.first_output_indices[row] == request.num_output_tokens
            logprobs = result.logprobs.get(request_id, [])
            output = self._append(request, tokens, logprobs, is_stale=is_stale)
            outputs.append(output)
            if output.finish is not None:
                self._end(request, output.finish, now_ms, finish_foreign)
        return outputs

    def request(self, request_id: str) -> Request | None:
        return self._requests.get(request_id)

    def settle(self, request: Request, num_scheduled: int) -> tuple[bool, bool]:
        """A row has been answered, or never will be. Returns (it was stale, it is to be dropped).

        What is in flight on a lane that the request has left is stale, whatever comes first.
        """
        assert request.num_in_flight_tokens >= num_scheduled
        request.num_in_flight_tokens -= num_scheduled
        self._lane.journal.requests[request.request_id] = request
        if request.num_stale_output_tokens == 0:
            return False, False
        is_dropped = request.drop_stale_output
        request.num_stale_output_tokens -= num_scheduled
        assert request.num_stale_output_tokens >= 0
        if request.num_stale_output_tokens == 0:
            request.drop_stale_output = False
            request.drains_elsewhere = False
        return True, is_dropped

    def _count_drafts(self, request: Request, num_drafts: int, num_tokens: int) -> None:
        """Rejected drafts go back from what counts as computed, and from the placeholders."""
        if num_drafts == 0 or num_tokens == 0:
            return
        num_rejected = num_drafts - (num_tokens - 1)
        if request.num_computed_tokens > 0:
            request.num_computed_tokens -= num_rejected
        if request.num_output_placeholders > 0:
            request.num_output_placeholders -= num_rejected

    def _append(
        self, request: Request, tokens: list[int], logprobs: list[TokenLogprobs], *, is_stale: bool
    ) -> RequestOutput:
        """Append tokens up to the first that ends the request; register what is full now."""
        first_index = request.num_output_tokens
        finish = None
        num_taken = 0
        for token in tokens:
            request.all_token_ids.append(token)
            num_taken += 1
            finish = check_stop(request, self._max_model_len)
            if finish is not None:
                break
        taken_logprobs = tuple(logprobs[:num_taken])
        if taken_logprobs:
            request.output_logprobs.extend(taken_logprobs)
        request.update_block_hashes()
        if self._is_async and not is_stale:
            request.num_output_placeholders -= num_taken
            if request.status is RequestStatus.RUNNING:
                num_known = request.num_computed_tokens - request.num_output_placeholders
                self._lane.kv.register_full_blocks(request, num_known)
        return RequestOutput(
            request.request_id,
            first_index,
            tuple(tokens[:num_taken]),
            taken_logprobs,
            finish,
            request.num_cached_tokens or 0,
        )

    def _end(
        self, request: Request, finish: Finish, now_ms: int, finish_foreign: FinishForeign
    ) -> None:
        if request.lane_id != self._lane_id:
            finish_foreign(request, finish, now_ms)
            return
        request.set_finished(finish, now_ms)
        self._lane.leave(request)
