"""A request's span and those of its phases: queued, prefill, decode, swapped.

A request's span has an id that follows from its submission, and begins with its arrival; so any
scheduler can export it, and the one that finishes the request does, once. A phase is exported by
whoever ends it. One that takes over a request in the middle of a phase begins that phase anew, and
links it to the last step that the request was in: what its predecessor had not ended is lost.

Knows the core's state and plans. Invariant: a request that is not sampled, or was never traced,
costs one lookup.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scheduler_svc.core.request import Request, RequestStatus
from scheduler_svc.tracing.step_attributes import DECODE, PREFILL
from segue.tracing import names
from segue.tracing.ended_span import Attributes, AttributeValue, EndedSpan, SpanEvent
from segue.tracing.trace_context import TraceContext, parse_traceparent, request_context
from segue.types import FinishReason, SchedulerOutput, Submission

if TYPE_CHECKING:
    from segue.tracing.ended_span import SpanLink
    from segue.tracing.tracer import Tracer

QUEUED, SWAPPED = "queued", "swapped"
NS_PER_MS = 1_000_000


@dataclass(slots=True)
class LiveRequest:
    """`num_outputs`: when its phase began; one more, and it decodes."""

    parent: TraceContext
    context: TraceContext
    phase: str
    phase_start_ns: int
    lane: str = ""
    num_outputs: int = 0
    phase_links: list[SpanLink] = field(default_factory=list["SpanLink"])
    events: list[SpanEvent] = field(default_factory=list[SpanEvent])


class RequestSpans:
    """`requests` is the core's own table; it is read and never changed."""

    def __init__(self, tracer: Tracer, requests: dict[str, Request]) -> None:
        self._tracer = tracer
        self._requests = requests
        self._live: dict[str, LiveRequest] = {}
        self._links: dict[str, SpanLink | None] = {}

    def begin(self, submission: Submission) -> None:
        """A request that was not known before; it waits since it has arrived."""
        self._add(submission, QUEUED, submission.arrival_unix_ms * NS_PER_MS)

    def take_over(self, request: Request, epoch: int, now_ns: int, link: SpanLink | None) -> None:
        """A request that another scheduler has left. `link`: the last step that it was in."""
        live = self._add(request.submission, _phase_of(request), now_ns)
        if live is None:
            return
        live.lane, live.num_outputs = request.lane_id, request.num_output_tokens
        if link is not None:
            live.phase_links.append(link)
        _note(live, "resumed", now_ns, {names.EPOCH: epoch})

    def rejected(self, submission: Submission, code: str, message: str, now_ns: int) -> None:
        """It is over before it has begun."""
        live = self._add(submission, QUEUED, submission.arrival_unix_ms * NS_PER_MS)
        if live is None:
            return
        attributes = _identity(submission) | {
            names.END_REASON: "rejected",
            names.END_MESSAGE: message,
            names.ERROR_TYPE: code,
        }
        self._export(submission, live, attributes, now_ns, error=message)

    def attached(self, request_ids: Iterable[str], gateway_id: str, now_ns: int) -> None:
        for request_id in request_ids:
            live = self._live.get(request_id)
            if live is not None:
                _note(live, "attached", now_ns, {names.BY: gateway_id})

    def planned(
        self, lane: str, plan: SchedulerOutput, started_ns: int, link: SpanLink | None
    ) -> None:
        """Who was admitted, preempted, or swapped in by this step. `link`: to it, if it is kept."""
        links = [link] if link is not None else []
        whole = (*plan.scheduled_new_reqs, *plan.scheduled_resumed_reqs)
        # Who is in both has another block table and goes on: three_queue's swapping in.
        for request_id in set(plan.preempted_req_ids).difference(d.request_id for d in whole):
            live = self._live.get(request_id)
            if live is not None:
                is_swapped = self._requests[request_id].status is RequestStatus.SWAPPED
                mode = "swap" if is_swapped else "recompute"
                about = {names.CAUSE: "blocks_ran_out", names.MODE: mode}
                self._preempted(live, about, SWAPPED if is_swapped else QUEUED, started_ns)
                live.phase_links = [*links]
        for data in whole:
            live = self._live.get(data.request_id)
            if live is None or live.phase in (PREFILL, DECODE):
                continue
            live.num_outputs = len(data.token_ids) - data.num_prompt_tokens
            if live.phase is SWAPPED:
                _note(live, "swapped_in", started_ns, {})
            goes_on = live.phase is SWAPPED and live.num_outputs > 0
            self._enter(live, DECODE if goes_on else PREFILL, started_ns)
            live.lane, live.phase_links = lane, [*links]

    def find_preempted(self, cause: str, now_ns: int) -> None:
        """Those that no step has preempted: a lane was lost or drained, or a client knew better."""
        for request_id, live in self._live.items():
            status = self._requests[request_id].status
            if live.phase is not QUEUED and status is RequestStatus.PREEMPTED:
                about = {names.CAUSE: cause, names.MODE: "recompute"}
                self._preempted(live, about, QUEUED, now_ns)

    def settle(self, touched: Iterable[str], now_ns: int) -> None:
        """Of those that have new rows or ended: first tokens, and ends. After the commit."""
        for request_id in touched:
            live, request = self._live.get(request_id), self._requests[request_id]
            if live is None:
                if request.finish is not None:
                    self._links.pop(request_id, None)
                continue
            if live.phase is PREFILL and request.num_output_tokens > live.num_outputs:
                self._enter(live, DECODE, now_ns)
            if request.finish is not None:
                self._finish(request, live, now_ns)

    def link_of(self, request_id: str) -> SpanLink | None:
        """To the request's span; None where that is not sampled, so will not come."""
        try:
            return self._links[request_id]
        except KeyError:
            request = self._requests.get(request_id)
            return None if request is None else self._make_link(request.submission)

    def _make_link(self, submission: Submission) -> SpanLink | None:
        parent = parse_traceparent(submission.traceparent)
        if parent is None or not parent.is_sampled:
            return None
        return self._tracer.link(request_context(parent, submission.request_id))

    def _add(self, submission: Submission, phase: str, start_ns: int) -> LiveRequest | None:
        request_id = submission.request_id
        self._links[request_id] = self._make_link(submission)
        parent = parse_traceparent(submission.traceparent)
        if parent is None or not parent.is_sampled:
            return None
        live = LiveRequest(parent, request_context(parent, request_id), phase, start_ns)
        self._live[request_id] = live
        return live

    def _preempted(self, live: LiveRequest, about: Attributes, phase: str, now_ns: int) -> None:
        _note(live, "preempted", now_ns, about)
        self._enter(live, phase, now_ns)

    def _enter(self, live: LiveRequest, phase: str, now_ns: int) -> None:
        """The phase so far ends, and is exported."""
        self._tracer.record(
            EndedSpan(
                live.phase,
                self._tracer.child_of(live.context),
                live.context,
                live.phase_start_ns,
                now_ns,
                {names.LANE: live.lane} if live.lane else {},
                live.phase_links,
            )
        )
        live.phase, live.phase_start_ns, live.phase_links = phase, now_ns, []

    def _finish(self, request: Request, live: LiveRequest, now_ns: int) -> None:
        finish = request.finish
        assert finish is not None
        attributes = _identity(request.submission) | {
            names.LANE: request.lane_id,
            names.END_REASON: finish.reason.value,
            names.GEN_AI_RESPONSE_FINISH_REASONS: [finish.reason.value],
            names.GEN_AI_USAGE_INPUT_TOKENS: finish.usage.num_prompt_tokens,
            names.GEN_AI_USAGE_OUTPUT_TOKENS: request.num_output_tokens,
            names.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS: finish.usage.num_cached_tokens,
            names.NUM_PREEMPTIONS: request.num_preemptions,
        }
        if finish.message:
            attributes[names.END_MESSAGE] = finish.message
        if finish.reason is FinishReason.ABORT:
            _note(live, "aborted", now_ns, {names.BY: finish.message})
        error = finish.message or "failed" if finish.reason is FinishReason.ERROR else ""
        self._export(request.submission, live, attributes, now_ns, error=error)

    def _export(
        self,
        submission: Submission,
        live: LiveRequest,
        attributes: dict[str, AttributeValue],
        now_ns: int,
        *,
        error: str,
    ) -> None:
        self._enter(live, "", now_ns)
        self._tracer.record(
            EndedSpan(
                names.SPAN_REQUEST,
                live.context,
                live.parent,
                min(submission.arrival_unix_ms * NS_PER_MS, now_ns),
                now_ns,
                attributes,
                events=live.events,
                error=error,
            )
        )
        del self._live[submission.request_id]
        self._links.pop(submission.request_id, None)


def _note(live: LiveRequest, name: str, at_ns: int, attributes: Attributes) -> None:
    live.events.append(SpanEvent(name, at_ns, attributes))


def _phase_of(request: Request) -> str:
    if request.status is RequestStatus.SWAPPED:
        return SWAPPED
    if request.status is not RequestStatus.RUNNING:
        return QUEUED
    return DECODE if request.num_output_tokens else PREFILL


def _identity(submission: Submission) -> dict[str, AttributeValue]:
    return {
        names.REQUEST_ID: submission.request_id,
        names.REQUEST_CHOICE: submission.choice,
        names.REQUEST_PRIORITY: submission.priority,
        names.GEN_AI_REQUEST_MAX_TOKENS: submission.sampling_params.max_tokens,
    }
