"""Echoes the caller's X-Request-Id in the response's header, whatever the response is.

Knows nothing about calls: the id in a body is ours, and unique. Invariant: no response to a request
that carries the header goes out without it.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

NAME = b"x-request-id"


class RequestIdHeader:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = [] if scope["type"] != "http" else [v for k, v in scope["headers"] if k == NAME]
        if not given:
            await self._app(scope, receive, send)
            return

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), (NAME, given[0])]
            await send(message)

        await self._app(scope, receive, send_with_id)
