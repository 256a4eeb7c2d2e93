"""Taking a step's result: tokens appended one by one, requests ended (specification 11).

V0 ends a request one token behind max_model_len, and not even there before min_tokens; what a
client gets must not depend on who looks (`intake.py` looks too), so that is `strict` only.

Knows nothing about planning. Invariant (rule 5): a token is taken only at the index that was fixed
for it when its step was planned, which is the number of outputs the request has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from scheduler_svc.core.request import Request, RequestStatus
from scheduler_svc.core.stop_check import check_stop
from scheduler_svc.core.three_queue.lane_state import LaneState
from segue.types import Finish, ModelRunnerOutput, SchedulerOutput, TokenLogprobs

FinishForeign = Callable[[Request, Finish, int], None]


@dataclass(slots=True)
class _Answer:
    """A result while its rows are taken."""

    result: ModelRunnerOutput
    now_ms: int
    finish_foreign: FinishForeign
    outputs: dict[str, Finish | None] = field(default_factory=dict[str, "Finish | None"])


class OutputPass:
    def __init__(self, lane: LaneState, requests: dict[str, Request], lane_id: str) -> None:
        self._lane = lane
        self._requests = requests
        self._lane_id = lane_id
        self._block_size = lane.config.block_size
        self._max_model_len = lane.config.max_model_len
        self._check_stop = _check_v0_stop if lane.config.strict else check_stop

    def run(
        self,
        plan: SchedulerOutput,
        result: ModelRunnerOutput,
        now_ms: int,
        finish_foreign: FinishForeign,
    ) -> dict[str, Finish | None]:
        """The requests that have new tokens or ended, in the batch's order, each with its end.

        One token for a running request is nearly all of a step, and `_take_row` in short.
        """
        answer = _Answer(result, now_ms, finish_foreign)
        outputs = answer.outputs
        sampled, first_indices = result.sampled_token_ids, result.first_output_indices
        requests, decoded = self._requests, self._lane.journal.decoded
        is_unusual = bool(result.logprobs or decoded)
        counts = plan.num_scheduled_tokens
        answered = zip(counts.items(), result.rows_of(counts), strict=True)
        for (request_id, num_scheduled), row in answered:
            request = requests.get(request_id)
            if request is None:
                continue
            if (
                row is None
                or is_unusual
                or num_scheduled != 1
                or len(sampled[row]) != 1
                or request.status is not RequestStatus.RUNNING
                or request.num_stale_output_tokens
            ):
                self._take_row(request, num_scheduled, row, answer)
                continue
            token, num_tokens = sampled[row][0], request.num_tokens
            assert first_indices[row] == num_tokens - request.num_prompt_tokens
            request.recent_token_ids.append(token)
            request.num_tokens = num_tokens = num_tokens + 1
            request.num_in_flight_tokens -= 1
            decoded[request_id] = token
            if not num_tokens % self._block_size:
                request.update_block_hashes()
            outputs[request_id] = None
            if (
                token in request.stop_ids
                or num_tokens >= request.max_total_tokens
                or num_tokens >= self._max_model_len
            ):
                finish = self._check_stop(request, self._max_model_len)
                if finish is not None:
                    outputs[request_id] = finish
                    self._end(request, finish, answer)
        self._lane.end_batch()
        return outputs

    def cancel(self, plan: SchedulerOutput) -> None:
        """The step will never answer."""
        for request_id, num_scheduled in plan.num_scheduled_tokens.items():
            request = self._requests.get(request_id)
            if request is not None:
                self._settle(request, num_scheduled)

    def _settle(self, request: Request, num_scheduled: int) -> tuple[bool, bool]:
        """A row was answered, or never will be. Returns (it was stale, it is to be dropped)."""
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

    def _take_row(
        self, request: Request, num_scheduled: int, row: int | None, answer: _Answer
    ) -> None:
        is_stale, is_void = self._settle(request, num_scheduled)
        if is_void or row is None or request.is_finished:
            return
        result = answer.result
        assert result.first_output_indices[row] == request.num_output_tokens
        logprobs = result.logprobs.get(request.request_id, [])
        finish = self._append(request, result.sampled_token_ids[row], logprobs, is_stale=is_stale)
        answer.outputs[request.request_id] = finish
        if finish is not None:
            self._end(request, finish, answer)

    def _end(self, request: Request, finish: Finish, answer: _Answer) -> None:
        if request.lane_id != self._lane_id:
            answer.finish_foreign(request, finish, answer.now_ms)
            return
        request.set_finished(finish, answer.now_ms)
        self._lane.end_in_batch(request)

    def _append(
        self, request: Request, tokens: list[int], logprobs: list[TokenLogprobs], *, is_stale: bool
    ) -> Finish | None:
        """Append tokens up to the first that ends the request.

        Of several, all but the last were computed when they were verified.
        """
        finish = None
        num_taken = 0
        for token in tokens:
            request.append_output(token)
            num_taken += 1
            finish = self._check_stop(request, self._max_model_len)
            if finish is not None:
                break
        request.output_logprobs.extend(logprobs[:num_taken])
        request.update_block_hashes()
        if not is_stale and num_taken > 1:
            request.num_computed_tokens += num_taken - 1
        return finish


def _check_v0_stop(request: Request, max_model_len: int) -> Finish | None:
    params = request.submission.sampling_params
    num_output = request.num_output_tokens
    if num_output < params.min_tokens:
        return None
    return check_stop(request, max_model_len + 1)
