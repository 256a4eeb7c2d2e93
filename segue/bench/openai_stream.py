"""One streaming completion of any OpenAI server, with the time of each event that carries text.

Knows HTTP/1.1 and OpenAI's events; asyncio alone, since client and server often share the machine
and a fuller client takes more of it. Invariant: an answer that did not come in full is an error.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

EVENT = b"data:"
DONE = b"[DONE]"
READ_LIMIT = 1 << 20
MAX_ERROR_BYTES = 2000


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


async def complete(url: str, body: dict[str, Any], api_key: str = "") -> Answer:
    """POST {url}/v1/completions on a connection of its own; url may end in /v1."""
    parts = urlsplit(url)
    if parts.hostname is None or parts.scheme not in ("http", "https"):
        raise RequestFailed(f"{url!r} is no http or https address")
    context = ssl.create_default_context() if parts.scheme == "https" else None
    port = parts.port or (443 if context else 80)
    try:
        reader, writer = await asyncio.open_connection(
            parts.hostname, port, limit=READ_LIMIT, ssl=context
        )
    except OSError as error:
        raise RequestFailed(f"{parts.netloc}: {error}") from error
    try:
        started_s = time.perf_counter()
        writer.write(_request(parts.netloc, parts.path.rstrip("/"), body, api_key))
        is_chunked = await _read_head(reader)
        return await _read_answer(_events(_lines(reader, is_chunked)), started_s)
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise RequestFailed(f"{type(error).__name__}: {error}") from error
    finally:
        writer.close()


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


async def _read_head(reader: asyncio.StreamReader) -> bool:
    """Whether the body comes in chunks. Raises RequestFailed where the server refuses."""
    status = await reader.readline()
    headers: dict[bytes, bytes] = {}
    while (line := await reader.readline()).strip():
        name, _, value = line.partition(b":")
        headers[name.strip().lower()] = value.strip().lower()
    if b" 200 " not in status:
        rest = await reader.read(MAX_ERROR_BYTES)
        text = b" ".join(rest.split()).decode(errors="replace")
        raise RequestFailed(f"{status.decode(errors='replace').strip()} {text}")
    return b"chunked" in headers.get(b"transfer-encoding", b"")


async def _lines(reader: asyncio.StreamReader, is_chunked: bool) -> AsyncIterator[bytes]:
    if not is_chunked:
        while line := await reader.readline():
            yield line
        return
    rest = b""
    while size := int((await reader.readline()).partition(b";")[0], 16):
        *lines, rest = (rest + await reader.readexactly(size)).split(b"\n")
        await reader.readexactly(2)  # CRLF
        for line in lines:
            yield line


async def _events(lines: AsyncIterator[bytes]) -> AsyncIterator[dict[str, Any]]:
    """The JSON of each event, up to [DONE]."""
    async for line in lines:
        if not line.startswith(EVENT):
            continue
        data = line.removeprefix(EVENT).strip()
        if data == DONE:
            return
        yield json.loads(data)
    raise RequestFailed("the stream ended without [DONE]")


async def _read_answer(events: AsyncIterator[dict[str, Any]], started_s: float) -> Answer:
    arrivals: list[float] = []
    usage: dict[str, Any] = {}
    async for event in events:
        if "error" in event:
            raise RequestFailed(f"in the stream: {event['error']}")
        usage = event.get("usage") or usage
        if any(choice.get("text") for choice in event.get("choices", ())):
            arrivals.append(time.perf_counter())
    ended_s = time.perf_counter()
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
