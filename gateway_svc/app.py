"""The HTTP surface: routes, bodies in, answers out, errors in OpenAI's envelope.

Knows nothing about schedulers or tokens. Invariant: a request is answered with a true status code;
once a stream has begun, with an error event; and nothing that a client sends ends in a 500.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway_svc.api_error import ApiError, internal, invalid, not_found
from gateway_svc.call import Call
from gateway_svc.call_factory import Caller, CallFactory
from gateway_svc.call_span import CallSpans, note_client_left, note_error, note_live, span_of
from gateway_svc.disconnect import ClientLeft, while_connected
from gateway_svc.gateway import Gateway
from gateway_svc.leader_kv_usage import LeaderKvUsage
from gateway_svc.live_call import LiveCall
from gateway_svc.metrics_port import MetricsPort
from gateway_svc.openai_api import ChatCompletionRequest, CompletionRequest, parse
from gateway_svc.request_id import RequestIdHeader
from gateway_svc.sse import EventId, EventIdError
from segue.tracing.trace_context import parse_traceparent

if TYPE_CHECKING:
    from segue.tracing.tracer import Tracer

log = logging.getLogger("segue.gateway")

LONG_BODY_BYTES = 16 << 10
CLIENT_CLOSED_REQUEST = 499  # nobody reads it; what nginx calls it
STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


class AnswerStreamResponse(Response):
    """Sends the events of a call, and closes the call when they end or the client leaves."""

    def __init__(self, gateway: Gateway, live: LiveCall, start: EventId | None = None) -> None:
        super().__init__(headers=STREAM_HEADERS)
        del self.headers["content-length"]
        self._gateway = gateway
        self._live = live
        self._stream = gateway.stream(live, start)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(receive, self._send(send))
        except ClientLeft:
            note_client_left(scope)
            log.debug("%s: the client left", self._live.call_id)
        finally:
            self._gateway.close(self._live, self._stream)

    async def _send(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        async for chunk in self._stream.events():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class Front:
    """The handlers. `model_card` is what /v1/models shows of each served name."""

    def __init__(
        self,
        gateway: Gateway,
        factory: CallFactory,
        model_cards: list[dict[str, Any]],
        max_body_bytes: int,
        kv_usage: LeaderKvUsage,
        metrics_port: MetricsPort,
    ) -> None:
        self._gateway = gateway
        self._factory = factory
        self._model_cards = model_cards
        self._max_body_bytes = max_body_bytes
        self._kv_usage = kv_usage
        self._metrics_port = metrics_port

    async def completions(self, request: Request) -> Response:
        self._gateway.check_open()
        caller = _caller(request)

        def complete(body: bytes) -> Call:
            return self._factory.completion(parse(CompletionRequest, body), caller)

        return await self._answer(request, await _complete(complete, await self._body(request)))

    async def chat_completions(self, request: Request) -> Response:
        self._gateway.check_open()
        caller = _caller(request)

        def complete(body: bytes) -> Call:
            return self._factory.chat(parse(ChatCompletionRequest, body), caller)

        return await self._answer(request, await _complete(complete, await self._body(request)))

    async def resume_stream(self, request: Request) -> Response:
        """Goes on after the event that `Last-Event-ID` names; without one, from the beginning."""
        self._gateway.check_open()
        call_id = request.path_params["call_id"]
        start = _last_event_id(request, call_id)
        try:
            live = await while_connected(request.receive, self._gateway.reopen(call_id))
        except ClientLeft:
            note_client_left(request.scope)
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        note_live(request.scope, live)
        if start is not None and any(i >= len(live.choices) for i in start.positions):
            self._gateway.close(live)
            raise invalid("Last-Event-ID names a choice that the stream does not have")
        return AnswerStreamResponse(self._gateway, live, start)

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": self._model_cards})

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"]
        for card in self._model_cards:
            if card["id"] == name:
                return JSONResponse(card)
        raise not_found(f"the model {name!r} is not served here", "model_not_found", "model")

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "alive"})

    async def ready(self, request: Request) -> Response:
        reason = self._gateway.why_not_ready()
        if reason is None:
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": "not ready", "reason": reason}, status_code=503)

    async def metrics(self, request: Request) -> Response:
        self._metrics_port.check(request.scope)
        media_type = "text/plain; version=0.0.4; charset=utf-8"
        usage = await self._kv_usage.read()
        return Response(self._gateway.metrics_page(usage), media_type=media_type)

    async def _answer(self, request: Request, call: Call) -> Response:
        gateway = self._gateway
        live = gateway.open(call)
        note_live(request.scope, live)
        is_handed_over = False
        try:
            await while_connected(request.receive, gateway.started(live))
            if call.shape.is_stream:
                response = AnswerStreamResponse(gateway, live)
                is_handed_over = True
                return response
            await while_connected(request.receive, gateway.ended(live))
            return JSONResponse(gateway.answer(live).whole())
        except ClientLeft:
            note_client_left(request.scope)
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        finally:
            if not is_handed_over:
                gateway.close(live)

    async def _body(self, request: Request) -> bytes:
        chunks: list[bytes] = []
        size = 0
        async for chunk in request.stream():
            size += len(chunk)
            if size > self._max_body_bytes:
                raise ApiError(413, f"the body is larger than {self._max_body_bytes} bytes")
            chunks.append(chunk)
        return b"".join(chunks)


def make_model_cards(names: tuple[str, ...], max_model_len: int) -> list[dict[str, Any]]:
    created = int(time.time())
    return [
        {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "segue",
            "root": names[0],
            "parent": None,
            "max_model_len": max_model_len,
        }
        for name in names
    ]


def make_app(front: Front, tracer: Tracer | None = None) -> ASGIApp:
    app = Starlette(
        routes=[
            Route("/v1/completions", front.completions, methods=["POST"]),
            Route("/v1/chat/completions", front.chat_completions, methods=["POST"]),
            Route("/v1/streams/{call_id}", front.resume_stream, methods=["GET"]),
            Route("/v1/models", front.models, methods=["GET"]),
            Route("/v1/models/{name:path}", front.model, methods=["GET"]),
            Route("/health", front.health, methods=["GET"]),
            Route("/ready", front.ready, methods=["GET"]),
            Route("/metrics", front.metrics, methods=["GET"]),
        ],
        exception_handlers={
            ApiError: _on_api_error,
            HTTPException: _on_http_error,
            ClientDisconnect: _on_disconnect,
            Exception: _on_fault,
        },
    )
    # Outside of all of Starlette's own, so that its answer to a fault carries the header too.
    with_ids = RequestIdHeader(app)
    return with_ids if tracer is None else CallSpans(with_ids, tracer)


async def _complete(complete: Callable[[bytes], Call], body: bytes) -> Call:
    """A long prompt takes a while to tokenize, in which the streams of others must go on."""
    if len(body) < LONG_BODY_BYTES:
        return complete(body)
    return await asyncio.to_thread(complete, body)


def _caller(request: Request) -> Caller:
    """The context that the scheduler's spans hang under: ours, or without one the client's."""
    span = span_of(request.scope)
    if span is not None:
        return Caller(traceparent=span.context.traceparent())
    # What is no traceparent is nobody's parent, and it may be of any length.
    given = parse_traceparent(request.headers.get("traceparent", ""))
    return Caller(traceparent="" if given is None else given.traceparent())


def _last_event_id(request: Request, call_id: str) -> EventId | None:
    text = request.headers.get("last-event-id", "")
    if not text:
        return None
    try:
        event_id = EventId.parse(text)
    except EventIdError as error:
        raise invalid(f"Last-Event-ID: {error}") from error
    if event_id.call_id != call_id:
        raise invalid("Last-Event-ID is of another stream")
    return event_id


async def _on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    note_error(request.scope, error)
    return JSONResponse(error.body(), status_code=error.status, headers=error.headers())


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    told = ApiError(error.status_code, f"{request.method} {request.url.path}: {error.detail}")
    return JSONResponse(told.body(), status_code=told.status, headers=error.headers)


async def _on_disconnect(request: Request, error: Exception) -> Response:
    note_client_left(request.scope)
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def _on_fault(request: Request, error: Exception) -> Response:
    """A fault of ours: Starlette logs it with its traceback."""
    told = internal("the gateway failed; this is a fault of ours")
    return JSONResponse(told.body(), status_code=told.status)
