"""One streaming completion of any OpenAI server, with the time of each event that carries text.

Knows HTTP/1.1 and OpenAI's events. While an answer comes, its bytes and the time of each piece are
only kept, and read when it is there: client and server often share the machine, and what the client
takes of it is missing in the figures. Invariant: an answer that did not come in full is an error.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

EVENT = b"data:"
DONE = b"[DONE]"
# JSON has no bare line feed, so this stands nowhere else. Who writes it otherwise hangs up.
LAST_EVENT = b"\ndata: [DONE]"
MAX_ERROR_BYTES = 2000
REFUSAL_TIMEOUT_S = 1.0  # for the rest of a refusal whose server does not hang up

Piece = tuple[float, bytes]
"""When it came, by time.perf_counter, and what."""


class RequestFailed(Exception):
    """No whole answer came; the message is one line."""


@dataclass(slots=True, frozen=True)
class Answer:
    """Times in seconds since `started_s`, which is time.perf_counter's."""

    started_s: float
    ttft_s: float  # to the first event with text
    e2e_s: float  # to the end of the answer
    itl_s: list[float]  # between any two events with text
    num_prompt_tokens: int  # by the server's count, 0 where it gives none
    num_cached_tokens: int
    num_tokens: int

    @property
    def tpot_s(self) -> float:
        """Time per output token after the first."""
        return (self.e2e_s - self.ttft_s) / max(1, self.num_tokens - 1)


class _Reply(asyncio.Protocol):
    """The pieces of what a server sends, until its last event or until it hangs up."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.pieces.append((time.perf_counter(), data))
        if LAST_EVENT in data:
            self._end(None)
        elif len(self.pieces) == 1 and not _is_accepted(data):
            self.ended.get_loop().call_later(REFUSAL_TIMEOUT_S, self._end, None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc)

    def _end(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(error)


async def complete(url: str, body: dict[str, Any], api_key: str = "") -> Answer:
    """POST {url}/v1/completions on a connection of its own; url may end in /v1."""
    parts = urlsplit(url)
    if parts.hostname is None or parts.scheme not in ("http", "https"):
        raise RequestFailed(f"{url!r} is no http or https address")
    context = ssl.create_default_context() if parts.scheme == "https" else None
    port = parts.port or (443 if context else 80)
    loop = asyncio.get_running_loop()
    try:
        transport, reply = await loop.create_connection(_Reply, parts.hostname, port, ssl=context)
    except OSError as error:
        raise RequestFailed(f"{parts.netloc}: {error}") from error
    try:
        started_s = time.perf_counter()
        transport.write(_request(parts.netloc, parts.path.rstrip("/"), body, api_key))
        error = await reply.ended
        if error is not None:
            raise error
        return _read_answer(_events(reply.pieces), started_s)
    except (OSError, ValueError, KeyError) as error:
        raise RequestFailed(f"{type(error).__name__}: {error}") from error
    finally:
        transport.close()


def _request(host: str, path: str, body: dict[str, Any], api_key: str) -> bytes:
    content = json.dumps(body).encode()
    prefix = path.removesuffix("/v1")
    lines = [
        f"POST {prefix}/v1/completions HTTP/1.1",
        f"Host: {host}",
        "Connection: close",
        "Content-Type: application/json",
        f"Content-Length: {len(content)}",
    ]
    if api_key:
        lines.append(f"Authorization: Bearer {api_key}")
    return "\r\n".join([*lines, "", ""]).encode() + content


def _is_accepted(head: bytes) -> bool:
    return b" 200 " in head.partition(b"\r\n")[0]


def _events(pieces: list[Piece]) -> Iterator[tuple[float, dict[str, Any]]]:
    """The JSON of each event, up to [DONE]. Raises RequestFailed where the server refused."""
    head, body = _split_head(pieces)
    status, *headers = head.split(b"\r\n")
    if not _is_accepted(status):
        rest = b"".join(piece for _, piece in body)[:MAX_ERROR_BYTES]
        text = b" ".join((status, *rest.split()))
        raise RequestFailed(text.decode(errors="replace").strip())
    is_chunked = any(
        header.lower().startswith(b"transfer-encoding:") and b"chunked" in header.lower()
        for header in headers
    )
    for arrived_s, line in _lines(_without_chunks(body) if is_chunked else body):
        if not line.startswith(EVENT):
            continue
        data = line.removeprefix(EVENT).strip()
        if data == DONE:
            yield arrived_s, {}
            return
        yield arrived_s, json.loads(data)
    raise RequestFailed("the stream ended without [DONE]")


def _split_head(pieces: list[Piece]) -> tuple[bytes, list[Piece]]:
    data = b""
    for index, (arrived_s, piece) in enumerate(pieces):
        data += piece
        head, is_whole, rest = data.partition(b"\r\n\r\n")
        if is_whole:
            return head, [(arrived_s, rest), *pieces[index + 1 :]]
    raise RequestFailed("the server hung up without an answer")


def _without_chunks(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """What is within the chunks of HTTP/1.1, each when it was there in full."""
    data = b""
    for arrived_s, piece in pieces:
        data += piece
        while True:
            size_line, is_whole, rest = data.partition(b"\r\n")
            if not is_whole:
                break
            size = int(size_line.partition(b";")[0], 16)
            if len(rest) < size + len(b"\r\n"):
                break
            yield arrived_s, rest[:size]
            data = rest[size + len(b"\r\n") :]


def _lines(pieces: Iterable[Piece]) -> Iterator[Piece]:
    arrived_s, rest = 0.0, b""
    for arrived_s, piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield arrived_s, line
    if rest:
        yield arrived_s, rest


def _read_answer(events: Iterable[tuple[float, dict[str, Any]]], started_s: float) -> Answer:
    arrivals: list[float] = []
    usage: dict[str, Any] = {}
    ended_s = started_s
    for ended_s, event in events:
        if "error" in event:
            raise RequestFailed(f"in the stream: {event['error']}")
        usage = event.get("usage") or usage
        if any(choice.get("text") for choice in event.get("choices", ())):
            arrivals.append(ended_s)
    if not arrivals:
        raise RequestFailed("the stream ended without a token")
    details: dict[str, Any] = usage.get("prompt_tokens_details") or {}
    return Answer(
        started_s=started_s,
        ttft_s=arrivals[0] - started_s,
        e2e_s=ended_s - started_s,
        itl_s=[later - earlier for earlier, later in pairwise(arrivals)],
        num_prompt_tokens=int(usage.get("prompt_tokens", 0)),
        num_cached_tokens=int(details.get("cached_tokens") or 0),
        num_tokens=int(usage.get("completion_tokens", len(arrivals))),
    )
