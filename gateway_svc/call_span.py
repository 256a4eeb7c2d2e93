"""The gateway's span of one call: from its headers to the last byte of its answer.

Knows ASGI and what a call is; knows nothing about exporting. Invariant: each call has one span,
however it ends, and that says why: complete, refused, failed, or its client left. Without a tracer
nothing here is in the way of a call.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway_svc.api_error import ApiError
from gateway_svc.call import Call
from gateway_svc.live_call import LiveCall
from segue.tracing import names
from segue.tracing.ended_span import AttributeValue, EndedSpan
from segue.tracing.trace_context import parse_traceparent, request_context
from segue.types import FinishReason

if TYPE_CHECKING:
    from segue.tracing.ended_span import SpanLink
    from segue.tracing.tracer import Tracer

KEY = "segue.call_span"
TRACED = ("/v1/completions", "/v1/chat/completions", "/v1/streams/")
SERVER_ERROR = 500


class CallSpans:
    """Gives each call a span; to be the outermost of all that answers."""

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(TRACED):
            await self._app(scope, receive, send)
            return
        span = scope[KEY] = CallSpan(self._tracer, scope)

        async def send_and_note(message: Message) -> None:
            if message["type"] == "http.response.start":
                span.status_code = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        finally:
            span.end()


class CallSpan:
    """What becomes of the call is noted here by whoever sees it."""

    def __init__(self, tracer: Tracer, scope: Scope) -> None:
        self._tracer = tracer
        self._scope = scope
        self._start_ns = time.time_ns()
        headers = {
            key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]
        }
        path = scope["path"]
        is_resumption = path.startswith("/v1/streams/")
        self._route = "/v1/streams/{call_id}" if is_resumption else path
        self._name = f"{scope['method']} {self._route}"
        self._parent, self.context = tracer.server_contexts(headers, self._name)
        self._is_resumption = is_resumption
        self.status_code = 0
        self.live: LiveCall | None = None
        self.error: ApiError | None = None
        self.has_client_left = False

    def end(self) -> None:
        reason, message = self._end()
        attributes: dict[str, AttributeValue] = {
            names.HTTP_REQUEST_METHOD: self._scope["method"],
            names.HTTP_ROUTE: self._route,
            names.URL_PATH: self._scope["path"],
            names.URL_SCHEME: self._scope["scheme"],
            names.HTTP_RESPONSE_STATUS_CODE: self.status_code,
            names.END_REASON: reason,
        }
        if message:
            attributes[names.END_MESSAGE] = message
        error = self._error()
        if error is not None:
            attributes[names.ERROR_TYPE] = error.code or error.type
        if self.live is not None:
            attributes |= _call_attributes(self.live.call) | _answer_attributes(self.live)
        is_fault = error is not None and error.status >= SERVER_ERROR
        self._tracer.record(
            EndedSpan(
                self._name,
                self.context,
                self._parent,
                self._start_ns,
                time.time_ns(),
                attributes,
                links=self._links(),
                error=message if is_fault or self.status_code >= SERVER_ERROR else "",
                is_server=True,
            )
        )

    def _error(self) -> ApiError | None:
        if self.error is None and self.live is not None:
            return self.live.error
        return self.error

    def _end(self) -> tuple[str, str]:
        """Why the call is over, and what the client was told of it, or would have been."""
        error = self._error()
        if error is not None:
            return ("refused" if error.status < SERVER_ERROR else "failed"), error.message
        if self.has_client_left:
            return "client_left", ""
        if self.live is None:
            return ("refused" if self.status_code < SERVER_ERROR else "failed"), ""
        for choice in self.live.choices:
            if choice.end is not None and choice.end.reason is FinishReason.ERROR:
                return "failed", choice.end.message
        return ("complete" if self.live.is_ended else "taken_over"), ""

    def _links(self) -> list[SpanLink]:
        """A stream that is gone on with links to the scheduler's spans of its requests."""
        if not self._is_resumption or self.live is None:
            return []
        links: list[SpanLink] = []
        for submission in self.live.call.submissions:
            parent = parse_traceparent(submission.traceparent)
            if parent is not None and parent.is_sampled:
                links.append(self._tracer.link(request_context(parent, submission.request_id)))
        return links


def span_of(scope: Scope) -> CallSpan | None:
    return scope.get(KEY)


def note_live(scope: Scope, live: LiveCall) -> None:
    span = span_of(scope)
    if span is not None:
        span.live = live


def note_client_left(scope: Scope) -> None:
    span = span_of(scope)
    if span is not None:
        span.has_client_left = True


def note_error(scope: Scope, error: ApiError) -> None:
    span = span_of(scope)
    if span is not None:
        span.error = error


def _call_attributes(call: Call) -> dict[str, AttributeValue]:
    shape, params = call.shape, call.submissions[0].sampling_params
    attributes: dict[str, AttributeValue] = {
        names.GEN_AI_OPERATION_NAME: names.operation_name(shape.kind.value),
        names.GEN_AI_PROVIDER_NAME: names.PROVIDER,
        names.GEN_AI_REQUEST_MODEL: shape.model,
        names.GEN_AI_REQUEST_STREAM: shape.is_stream,
        names.GEN_AI_REQUEST_MAX_TOKENS: params.max_tokens,
        names.GEN_AI_REQUEST_TEMPERATURE: params.temperature,
        names.GEN_AI_REQUEST_TOP_P: params.top_p,
        names.GEN_AI_REQUEST_SEED: str(params.seed),  # up to 64 bits, and OTLP's are signed
        names.GEN_AI_USAGE_INPUT_TOKENS: call.num_prompt_tokens,
        names.GEN_AI_RESPONSE_ID: call.call_id,
        names.GEN_AI_RESPONSE_MODEL: shape.model,
    }
    if shape.num_choices != 1:
        attributes[names.GEN_AI_REQUEST_CHOICE_COUNT] = shape.num_choices
    if params.top_k:
        attributes[names.GEN_AI_REQUEST_TOP_K] = params.top_k
    if params.presence_penalty:
        attributes[names.GEN_AI_REQUEST_PRESENCE_PENALTY] = params.presence_penalty
    if params.frequency_penalty:
        attributes[names.GEN_AI_REQUEST_FREQUENCY_PENALTY] = params.frequency_penalty
    if shape.stops:
        attributes[names.GEN_AI_REQUEST_STOP_SEQUENCES] = shape.stops
    return attributes


def _answer_attributes(live: LiveCall) -> dict[str, AttributeValue]:
    ends = [c.end.reason.value if c.end is not None else "none" for c in live.choices]
    return {
        names.GEN_AI_RESPONSE_FINISH_REASONS: ends,
        names.GEN_AI_USAGE_OUTPUT_TOKENS: sum(c.num_answer_tokens for c in live.choices),
        names.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS: live.choices[0].num_cached_tokens,
    }
