"""Taking a step's result: tokens appended, requests ended, drafts counted (specification 13).

Knows nothing about planning. Invariant (rule 5): a token is taken only at the index that was fixed
for it when its step was planned, which is the number of outputs the request has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from scheduler_svc.core.request import Request, RequestStatus
from scheduler_svc.core.stop_check import check_stop
from scheduler_svc.core.unified.features import Features
from scheduler_svc.core.unified.lane_state import LaneState
from segue.types import (
    Finish,
    FinishReason,
    ModelRunnerOutput,
    RequestOutput,
    SchedulerOutput,
    TokenLogprobs,
    Usage,
)

FinishForeign = Callable[[Request, Finish, int], None]


class OutputPass:
    def __init__(
        self, lane: LaneState, requests: dict[str, Request], lane_id: str, features: Features
    ) -> None:
        self._lane = lane
        self._requests = requests
        self._lane_id = lane_id
        self._features = features
        self._rules = features.rules
        self._max_model_len = lane.config.max_model_len
        self._is_async = lane.config.async_scheduling

    def run(
        self,
        plan: SchedulerOutput,
        result: ModelRunnerOutput,
        now_ms: int,
        finish_foreign: FinishForeign,
    ) -> list[RequestOutput]:
        features = self._features
        if features.deferred_frees is not None:
            features.deferred_frees.step_processed()
        report = None
        if features.remote_kv is not None:
            report = features.remote_kv.connector.take_report()
        passed_over: Collection[str] = ()
        failed: list[Request] = []
        if report is not None and report.invalid_block_ids:
            passed_over, failed = features.load_failures.apply(
                report.invalid_block_ids, plan.num_scheduled_tokens
            )

        def end(request: Request, finish: Finish) -> None:
            if request.lane_id != self._lane_id:
                finish_foreign(request, finish, now_ms)
                return
            request.set_finished(finish, now_ms)
            self._lane.leave(request)

        outputs = self._take_rows(plan, result, passed_over, end)
        for request in features.grammar_wait.take_refused():
            outputs.append(self._fail(request, "its grammar does not compile", now_ms))
        for request in failed:
            outputs.append(self._fail(request, "its KV could not be loaded", now_ms))
        if report is not None:
            assert features.remote_kv is not None
            features.remote_kv.take_finished(report, self._requests)
        return outputs

    def cancel(self, plan: SchedulerOutput) -> None:
        """The step will never answer."""
        for request_id, num_scheduled in plan.num_scheduled_tokens.items():
            request = self._requests.get(request_id)
            if request is not None:
                self.settle(request, num_scheduled)
        if self._features.deferred_frees is not None:
            self._features.deferred_frees.step_processed()

    def _take_rows(
        self,
        plan: SchedulerOutput,
        result: ModelRunnerOutput,
        passed_over: Collection[str],
        end: Callable[[Request, Finish], None],
    ) -> list[RequestOutput]:
        """`passed_over`: requests whose row is void, since what they read was not there."""
        rows = {request_id: index for index, request_id in enumerate(result.request_ids)}
        outputs: list[RequestOutput] = []
        for request_id, num_scheduled in plan.num_scheduled_tokens.items():
            request = self._requests.get(request_id)
            if request is None:
                continue
            is_stale, is_dropped = self.settle(request, num_scheduled)
            row = rows.get(request_id)
            if request.is_finished or is_dropped or request_id in passed_over:
                continue
            tokens = result.sampled_token_ids[row] if row is not None else []
            if not is_stale:
                num_drafts = len(plan.draft_token_ids.get(request_id, ()))
                self._count_drafts(request, num_drafts, len(tokens))
            for processed in self._rules.processed:
                processed(request)
            if row is None:
                continue
            assert result.first_output_indices[row] == request.num_output_tokens
            logprobs = result.logprobs.get(request_id, [])
            output = self._append(request, tokens, logprobs, is_stale=is_stale)
            outputs.append(output)
            if output.finish is not None:
                end(request, output.finish)
        return outputs

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

    def _fail(self, request: Request, message: str, now_ms: int) -> RequestOutput:
        """End a request of this lane with an error."""
        usage = Usage(
            request.num_prompt_tokens, request.num_output_tokens, request.num_cached_tokens or 0
        )
        finish = Finish(FinishReason.ERROR, usage, message=message)
        request.set_finished(finish, now_ms)
        self._lane.leave(request)
        return RequestOutput(
            request.request_id, request.num_output_tokens, (), (), finish, usage.num_cached_tokens
        )
