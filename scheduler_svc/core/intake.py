"""Requests in and out: submitted, attached, handed over, aborted, forgotten.

Knows nothing about executors or steps. Invariant (rule 5): what a client saw wins. After a request
is attached with rows D, its output O has D as a prefix, and the next row told has index |D|.
"""

from __future__ import annotations

from scheduler_svc.core.engine_state import EngineState
from scheduler_svc.core.events import (
    Accepted,
    Detached,
    OwnerGone,
    RejectCode,
    Rejected,
    Reply,
    RequestAborted,
    RequestsAttached,
    RequestsSubmitted,
    SessionOpened,
    Tick,
    Unknown,
)
from scheduler_svc.core.request import Request, RequestStatus
from scheduler_svc.core.stop_check import check_stop
from segue.types import Attachment, FinishReason, Submission

RETRY_AFTER_MS = 1000


class Intake:
    """The handlers of the events that come from gateways. Replies are due after the next commit."""

    def __init__(self, state: EngineState) -> None:
        self._state = state

    def submit(self, event: RequestsSubmitted) -> list[Reply]:
        """Accept the choices of one call, all or none; one that is known is attached instead."""
        state = self._state
        delivered = {item.request_id: item for item in event.delivered}
        replies: list[Reply] = []
        fresh: list[Submission] = []
        for submission in event.submissions:
            request_id = submission.request_id
            if request_id in state.requests:
                state.counters.num_duplicate_submissions += 1
                rows = delivered.get(request_id, Attachment(request_id))
                replies += self._attach(event.gateway_id, rows, event.now_ms, is_new=False)
            else:
                fresh.append(submission)
        refusal = self._refusal(event.gateway_id, fresh, is_again=bool(delivered))
        if refusal is not None:
            return [*replies, *refusal]
        for submission in fresh:
            rows = delivered.get(submission.request_id, Attachment(submission.request_id))
            self._accept(event.gateway_id, submission, rows, event.now_ms)
            next_index = len(rows.delivered_token_ids)
            replies.append(Accepted(event.gateway_id, submission.request_id, next_index))
        return replies

    def open_session(self, event: SessionOpened) -> list[Reply]:
        """Attach all that the gateway lists; what is its own and not listed was given up.

        A request whose client may come back through another gateway waits for it as an orphan.
        """
        wanted = {item.request_id for item in event.attachments}
        for request in list(self._state.requests.values()):
            if request.owner != event.gateway_id or request.request_id in wanted:
                continue
            if request.is_finished:
                continue
            if request.submission.is_resumable:
                self._set_owner(request, f"orphan-of:{event.gateway_id}@{event.now_ms}")
            else:
                message = "its gateway came back without it"
                self._state.end_request(request, FinishReason.ABORT, message, event.now_ms)
        replies: list[Reply] = []
        for item in event.attachments:
            replies += self._attach(event.gateway_id, item, event.now_ms, is_new=False)
        return replies

    def attach(self, event: RequestsAttached) -> list[Reply]:
        replies: list[Reply] = []
        for item in event.attachments:
            replies += self._attach(event.gateway_id, item, event.now_ms, is_new=True)
        return replies

    def abort(self, event: RequestAborted) -> list[Reply]:
        """End the request, if it is this gateway's (H24)."""
        request = self._state.requests.get(event.request_id)
        if request is None or request.is_finished:
            return []
        if request.owner != event.gateway_id:
            return [Detached(event.gateway_id, event.request_id)]
        self._state.end_request(request, FinishReason.ABORT, event.reason, event.now_ms)
        return []

    def owner_gone(self, event: OwnerGone) -> list[Reply]:
        for request in list(self._state.requests.values()):
            if request.owner == event.owner and not request.is_finished:
                message = "no client came back for it"
                self._state.end_request(request, FinishReason.ABORT, message, event.now_ms)
        return []

    def expire(self, event: Tick) -> list[Reply]:
        """Forget what ended longer ago than it is kept."""
        state = self._state
        before_ms = event.now_ms - state.config.finished_ttl_ms
        for request_id, request in list(state.requests.items()):
            if not request.is_finished or request.finished_at_ms >= before_ms:
                continue
            if request.num_in_flight_tokens > 0:  # a step that names it is still to be retired
                continue
            if request_id in state.touched:  # somebody who came back is still to be told
                continue
            del state.requests[request_id]
            state.dirty_requests.pop(request_id, None)
            state.at_risk.discard(request_id)
            for journal in state.journals.values():
                journal.forget(request_id)
            state.expired.append(request_id)
        return []

    def _refusal(
        self, gateway_id: str, fresh: list[Submission], *, is_again: bool
    ) -> list[Reply] | None:
        """Why these are refused, if so. Rows delivered before never meet a full queue (H22)."""
        state = self._state
        refusals = [self._refusal_of(submission) for submission in fresh]
        reason = next((refusal for refusal in refusals if refusal is not None), None)
        limit = state.config.max_queued_requests
        if reason is None and not is_again and state.num_queued() + len(fresh) > limit:
            reason = RejectCode.QUEUE_FULL, f"the queue is full ({limit} requests)"
        if reason is None or not fresh:
            return None
        code, message = reason
        retry_after_ms = RETRY_AFTER_MS if code is RejectCode.QUEUE_FULL else 0
        return [
            Rejected(gateway_id, submission.request_id, code, message, retry_after_ms)
            for submission in fresh
        ]

    def _refusal_of(self, submission: Submission) -> tuple[RejectCode, str] | None:
        """Why this one can never be served."""
        num_prompt = len(submission.prompt_token_ids)
        limit = self.max_model_len()
        if num_prompt == 0:
            return RejectCode.INVALID, "the prompt is empty"
        if submission.sampling_params.max_tokens < 1:
            return RejectCode.INVALID, "max_tokens must be at least 1"
        if submission.adapter:
            return RejectCode.UNSUPPORTED, "no executor can load adapters yet"
        if num_prompt >= limit:
            message = f"the prompt has {num_prompt} tokens; at most {limit - 1} can be served"
            return RejectCode.TOO_LONG, message
        return None

    def max_model_len(self) -> int:
        """The longest that any lane can serve."""
        config = self._state.config.scheduler
        lanes = [lane for lane in self._state.lanes.values() if lane.capacity is not None]
        lengths = [
            config.for_capacity(lane.capacity).max_model_len for lane in lanes if lane.capacity
        ]
        return max(lengths, default=config.max_model_len)

    def _accept(
        self, gateway_id: str, submission: Submission, rows: Attachment, now_ms: int
    ) -> None:
        state = self._state
        request = Request(submission, block_size=state.config.scheduler.block_size)
        request.owner = gateway_id
        state.requests[submission.request_id] = request
        state.record.accepted.append(request)
        if rows.delivered_token_ids:
            request.set_output(rows.delivered_token_ids, rows.delivered_logprobs)
            if self._stops(request, now_ms):
                return
        state.place(request, now_ms)

    def _attach(
        self, gateway_id: str, rows: Attachment, now_ms: int, *, is_new: bool
    ) -> list[Reply]:
        """Give the request to this gateway, adopting what its client has seen."""
        state = self._state
        if rows.is_finished:
            self._end_as_seen(gateway_id, rows, now_ms)
            return []
        request = state.requests.get(rows.request_id)
        if request is None:
            return [Unknown(gateway_id, rows.request_id)]
        replies: list[Reply] = []
        if request.owner != gateway_id:
            replies.append(Detached(request.owner, rows.request_id))
            self._set_owner(request, gateway_id)
        seen = list(rows.delivered_token_ids)
        if seen != request.all_token_ids[request.num_prompt_tokens :][: len(seen)]:
            self._adopt(request, rows, now_ms)
        state.touched[request.request_id] = None
        state.counters.num_streams_resumed += not request.is_finished
        submission = request.submission if is_new else None
        replies.append(Accepted(gateway_id, rows.request_id, len(seen), submission))
        return replies

    def _adopt(self, request: Request, rows: Attachment, now_ms: int) -> None:
        """O := D. Redis has lost something, so what was computed since is dropped (H9)."""
        state = self._state
        state.counters.num_adoptions += 1
        if request.is_finished:
            request.revive()
        else:
            state.withdraw(request)
        request.set_output(rows.delivered_token_ids, rows.delivered_logprobs)
        request.status = RequestStatus.PREEMPTED
        state.rewritten.add(request.request_id)
        if not self._stops(request, now_ms):
            state.place_at_head([request], now_ms)

    def _end_as_seen(self, gateway_id: str, rows: Attachment, now_ms: int) -> None:
        """Its gateway was told an end that Redis has lost: nobody is left to run it for (H36).

        Where another gateway has it by now, its client came back there for what it had not seen.
        """
        request = self._state.requests.get(rows.request_id)
        if request is None or request.is_finished or request.owner != gateway_id:
            return
        if list(rows.delivered_token_ids) != request.output_token_ids:
            self._adopt(request, rows, now_ms)
        if not request.is_finished:
            message = "its gateway had been told its end"
            self._state.end_request(request, FinishReason.ABORT, message, now_ms)

    def _stops(self, request: Request, now_ms: int) -> bool:
        """Apply the stop conditions to output that was delivered; true if it is complete."""
        finish = check_stop(request, self.max_model_len())
        if finish is None:
            return False
        request.set_finished(finish, now_ms)
        self._state.note_finish(request)
        return True

    def _set_owner(self, request: Request, owner: str) -> None:
        request.owner = owner
        self._state.dirty_requests[request.request_id] = request
