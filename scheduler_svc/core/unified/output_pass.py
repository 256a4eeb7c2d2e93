"""Taking a step's result: tokens appended, requests ended, drafts counted (specification 13).

Knows nothing about planning. Invariant (rule 5): a token is taken only at the index that was fixed
for it when its step was planned, which is the number of outputs the request has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from scheduler_svc.core.request import Request, RequestStatus
from scheduler_svc.core.stop_check import check_stop, make_finish
from scheduler_svc.core.unified.features import Features
from scheduler_svc.core.unified.lane_state import LaneState
from segue.types import Finish, FinishReason, ModelRunnerOutput, SchedulerOutput, TokenLogprobs

End = Callable[[Request, Finish], None]


class OutputPass:
    def __init__(
        self, lane: LaneState, requests: dict[str, Request], lane_id: str, features: Features
    ) -> None:
        self._lane = lane
        self._requests = requests
        self._lane_id = lane_id
        self._features = features
        self._rules = features.rules
        self._block_size = lane.config.block_size
        self._max_model_len = lane.config.max_model_len
        self._is_async = lane.config.async_scheduling

    def run(
        self,
        plan: SchedulerOutput,
        result: ModelRunnerOutput,
        now_ms: int,
        finish_foreign: Callable[[Request, Finish, int], None],
    ) -> dict[str, Finish | None]:
        """The requests that have new tokens or ended, in order, each with its end."""
        features = self._features
        if features.deferred_frees is not None:
            features.deferred_frees.step_processed(plan)
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
            self._fail(request, "its grammar does not compile", end, outputs)
        for request in failed:
            self._fail(request, "its KV could not be loaded", end, outputs)
        if report is not None:
            assert features.remote_kv is not None
            features.remote_kv.take_finished(report, self._requests)
        return outputs

    def cancel(self, plan: SchedulerOutput) -> None:
        """The step will never answer."""
        for request_id, num_scheduled in plan.num_scheduled_tokens.items():
            request = self._requests.get(request_id)
            if request is not None:
                self._settle(request, num_scheduled)
        if self._features.deferred_frees is not None:
            self._features.deferred_frees.step_processed(plan)

    def _take_rows(
        self,
        plan: SchedulerOutput,
        result: ModelRunnerOutput,
        passed_over: Collection[str],
        end: End,
    ) -> dict[str, Finish | None]:
        """`passed_over`: requests whose row is void, since what they read was not there."""
        requests, outputs = self._requests, dict[str, Finish | None]()
        decoded, is_running = self._lane.journal.decoded, RequestStatus.RUNNING
        sampled, first_indices = result.sampled_token_ids, result.first_output_indices
        rows = dict(zip(result.request_ids, range(len(sampled)), strict=True))
        is_plain_step = not (
            plan.draft_token_ids or result.logprobs or passed_over or self._rules.processed
        )
        for request_id, num_scheduled in plan.num_scheduled_tokens.items():
            request = requests.get(request_id)
            if request is None:
                continue
            row = rows.get(request_id)
            if (
                is_plain_step
                and row is not None
                and request.status is is_running
                and not request.num_stale_output_tokens
            ):
                request.num_in_flight_tokens -= num_scheduled
                decoded[request_id] = request
                finish = self._append_one(request, sampled[row], first_indices[row])
            else:
                is_stale, is_void = self._settle(request, num_scheduled)
                if is_void or request.is_finished or request_id in passed_over:
                    continue
                tokens = sampled[row] if row is not None else []
                if not is_stale:
                    num_drafts = len(plan.draft_token_ids.get(request_id, ()))
                    self._take_back_rejected(request, num_drafts, len(tokens))
                for processed in self._rules.processed:
                    processed(request)
                if row is None:
                    continue
                assert first_indices[row] == request.num_output_tokens
                logprobs = result.logprobs.get(request_id, [])
                finish = self._append(request, tokens, logprobs, is_stale=is_stale)
            outputs[request_id] = finish
            if finish is not None:
                end(request, finish)
        return outputs

    def _append_one(self, request: Request, tokens: list[int], first_index: int) -> Finish | None:
        """`_append` for one token of a running request without drafts: nearly all of a step."""
        all_token_ids = request.all_token_ids
        num_tokens = len(all_token_ids)
        assert first_index == num_tokens - request.num_prompt_tokens
        (token,) = tokens
        all_token_ids.append(token)
        num_tokens += 1
        if not num_tokens % self._block_size:
            request.update_block_hashes()
        if self._is_async:
            request.num_output_placeholders -= 1
            num_known = request.num_computed_tokens - request.num_output_placeholders
            if not num_known % self._block_size:
                self._lane.kv.register_full_blocks(request, num_known)
        if (
            token in request.stop_ids
            or num_tokens >= request.max_total_tokens
            or num_tokens >= self._max_model_len
        ):
            return check_stop(request, self._max_model_len)
        return None

    def _append(
        self, request: Request, tokens: list[int], logprobs: list[TokenLogprobs], *, is_stale: bool
    ) -> Finish | None:
        """Append tokens up to the first that ends the request; register what is full now."""
        finish = None
        num_taken = 0
        for token in tokens:
            request.all_token_ids.append(token)
            num_taken += 1
            finish = check_stop(request, self._max_model_len)
            if finish is not None:
                break
        request.output_logprobs.extend(logprobs[:num_taken])
        request.update_block_hashes()
        if self._is_async and not is_stale:
            request.num_output_placeholders -= num_taken
            if request.status is RequestStatus.RUNNING:
                num_known = request.num_computed_tokens - request.num_output_placeholders
                self._lane.kv.register_full_blocks(request, num_known)
        return finish

    def _settle(self, request: Request, num_scheduled: int) -> tuple[bool, bool]:
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

    def _take_back_rejected(self, request: Request, num_drafts: int, num_tokens: int) -> None:
        """Rejected drafts go back from what counts as computed, and from the placeholders."""
        if num_drafts == 0 or num_tokens == 0:
            return
        num_rejected = num_drafts - (num_tokens - 1)
        if request.num_computed_tokens > 0:
            request.num_computed_tokens -= num_rejected
        if request.num_output_placeholders > 0:
            request.num_output_placeholders -= num_rejected

    def _fail(
        self, request: Request, message: str, end: End, outputs: dict[str, Finish | None]
    ) -> None:
        finish = make_finish(request, FinishReason.ERROR, message=message)
        end(request, finish)
        outputs[request.request_id] = finish
