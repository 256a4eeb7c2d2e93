"""Taking a step's result: tokens appended, requests ended, drafts counted (specification 13).

Knows nothing about planning. Invariant (rule 5): a token is taken only at the index that was fixed
for it when its step was planned, which is the number of outputs the request has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from scheduler_svc.core.request import Request, RequestStatus
from scheduler_svc.core.stop_check import check_stop, make_finish
from scheduler_svc.core.unified.features import Features
from scheduler_svc.core.unified.lane_state import LaneState
from segue.types import Finish, FinishReason, ModelRunnerOutput, SchedulerOutput, TokenLogprobs

End = Callable[[Request, Finish], None]


@dataclass(slots=True)
class _Answer:
    """One step and its result, while its rows are taken."""

    plan: SchedulerOutput
    result: ModelRunnerOutput
    passed_over: Collection[str]
    outputs: dict[str, Finish | None]
    end: End

    @property
    def is_unusual(self) -> bool:
        result = self.result
        return bool(
            self.plan.draft_token_ids or result.logprobs or result.row_errors or self.passed_over
        )


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
        counts = plan.num_scheduled_tokens
        for request, num_scheduled in zip(self._scheduled(plan), counts.values(), strict=True):
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
        """`passed_over`: requests whose row is void, since what they read was not there.

        One token for a running request is nearly all of a step, and `_take_row` in short.
        """
        answer = _Answer(plan, result, passed_over, {}, end)
        sampled, first_indices = result.sampled_token_ids, result.first_output_indices
        outputs, decoded = answer.outputs, self._lane.journal.decoded
        is_unusual = answer.is_unusual or bool(self._rules.processed or decoded)
        running, num_placeholders = RequestStatus.RUNNING, 1 if self._is_async else 0
        block_size, max_model_len = self._block_size, self._max_model_len
        counts = plan.num_scheduled_tokens
        rows = result.rows_of(counts)
        answered = zip(self._scheduled(plan), counts.items(), rows, strict=True)
        for request, (request_id, num_scheduled), row in answered:
            if request is None:
                continue
            if (
                row is None
                or is_unusual
                or num_scheduled != 1
                or request.status is not running
                or request.num_stale_output_tokens
            ):
                self._take_row(request, num_scheduled, row, answer)
                continue
            num_tokens = request.num_tokens
            assert first_indices[row] == num_tokens - request.num_prompt_tokens
            (token,) = sampled[row]
            request.recent_token_ids.append(token)
            request.num_tokens = num_tokens = num_tokens + 1
            request.num_in_flight_tokens -= 1
            request.num_output_placeholders -= num_placeholders
            decoded[request_id] = token
            if num_tokens % block_size < 2:
                self._pass_block_edge(request, num_tokens)
            outputs[request_id] = None
            if (
                token in request.stop_ids
                or num_tokens >= request.max_total_tokens
                or num_tokens >= max_model_len
            ):
                finish = check_stop(request, max_model_len)
                if finish is not None:
                    outputs[request_id] = finish
                    end(request, finish)
        return outputs

    def _scheduled(self, plan: SchedulerOutput) -> Iterable[Request | None]:
        """Who is in the step; None: who is forgotten. A request stays as long as a step has it."""
        scheduled = self._lane.in_flight.pop(plan.step_id, None)
        return scheduled or map(self._requests.get, plan.num_scheduled_tokens)

    def _pass_block_edge(self, request: Request, num_tokens: int) -> None:
        """A block has its last token, or the first behind it has come: its KV is there now."""
        if not num_tokens % self._block_size:
            request.update_block_hashes()
        elif self._is_async:
            num_known = request.num_computed_tokens - request.num_output_placeholders
            assert num_known == num_tokens - 1
            self._lane.kv.register_full_blocks(request, num_known)

    def _take_row(
        self, request: Request, num_scheduled: int, row: int | None, answer: _Answer
    ) -> None:
        request_id, plan, result = request.request_id, answer.plan, answer.result
        is_stale, is_void = self._settle(request, num_scheduled)
        if is_void or request.is_finished or request_id in answer.passed_over:
            return
        tokens = result.sampled_token_ids[row] if row is not None else []
        if not is_stale:
            num_drafts = len(plan.draft_token_ids.get(request_id, ()))
            self._take_back_rejected(request, num_drafts, len(tokens))
        for processed in self._rules.processed:
            processed(request)
        if row is None:
            return
        assert result.first_output_indices[row] == request.num_output_tokens
        logprobs = result.logprobs.get(request_id, [])
        finish = self._append(request, tokens, logprobs, is_stale=is_stale)
        answer.outputs[request_id] = finish
        if finish is not None:
            answer.end(request, finish)

    def _append(
        self, request: Request, tokens: list[int], logprobs: list[TokenLogprobs], *, is_stale: bool
    ) -> Finish | None:
        """Append tokens up to the first that ends the request; register what is full now."""
        finish = None
        num_taken = 0
        for token in tokens:
            request.append_output(token)
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
