"""`segue chat`: talks to a model through the gateway, as any client would.

Knows OpenAI's API and Last-Event-ID, nothing of the services. Invariant: a connection that breaks
within an answer is taken up again where it was; what was printed is never printed twice.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

import httpx

from segue.commands.running_serve import NothingServed, running_serve

if TYPE_CHECKING:
    # argparse has no public name for what `add_subparsers` returns.
    from argparse import _SubParsersAction  # pyright: ignore[reportPrivateUsage]

DEFAULT_URL = "http://127.0.0.1:8000"
TEMPERATURE = 0.2
CONNECT_TIMEOUT_S = 5.0
RESUME_FOR_S = 30.0
RESUME_PAUSE_S = 0.3

Message = dict[str, str]


class ChatError(Exception):
    """One readable line."""


def register(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("chat", help="talk to a model; without a text, interactively")
    parser.add_argument("text", nargs="*", help="ask this, print the answer, and end")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--url", help=f"default: SEGUE_URL, else {DEFAULT_URL}")
    where.add_argument("--state-dir", type=Path, metavar="PATH", help="of the `segue serve` meant")
    parser.add_argument("--model", help="default: the first that is served")
    parser.add_argument("--system", help="a system message before the conversation")
    parser.add_argument("--max-tokens", type=int)
    parser.add_argument(
        "--temperature",
        type=float,
        default=TEMPERATURE,
        help=f"default {TEMPERATURE}: at the API's own 1 a small model loses its thread",
    )
    parser.add_argument("--seed", type=int)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    timeout = httpx.Timeout(None, connect=CONNECT_TIMEOUT_S)
    options = {
        name: value
        for name in ("model", "max_tokens", "temperature", "seed")
        if (value := getattr(args, name)) is not None
    }
    messages: list[Message] = []
    if args.system:
        messages.append({"role": "system", "content": args.system})
    try:
        with httpx.Client(base_url=_url(args), timeout=timeout) as http:
            if args.text:
                _ask(http, messages, " ".join(args.text), options)
                return 0
            return _converse(http, messages, options)
    except (ChatError, NothingServed, httpx.InvalidURL) as error:
        print(f"segue chat: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print()
        return 130


def _url(args: argparse.Namespace) -> str:
    """Without /v1: `serve` shows the URL as clients of OpenAI want it. NothingServed."""
    if args.state_dir is not None:
        return running_serve(args.state_dir)[1].url
    url: str = args.url or os.environ.get("SEGUE_URL", DEFAULT_URL)
    return url.rstrip("/").removesuffix("/v1")


def _converse(http: httpx.Client, messages: list[Message], options: dict[str, Any]) -> int:
    """Until end of file. An answer that fails is told, and the conversation goes on."""
    while True:
        try:
            text = input("> ")
        except EOFError:
            print()
            return 0
        if not text.strip():
            continue
        try:
            _ask(http, messages, text, options)
        except ChatError as error:
            print(f"segue chat: {error}", file=sys.stderr)


def _ask(http: httpx.Client, messages: list[Message], text: str, options: dict[str, Any]) -> None:
    """Prints the answer as it comes; both are part of the conversation if it came whole."""
    asked = [*messages, {"role": "user", "content": text}]
    answer = ""
    for piece in stream_answer(http, {"messages": asked, **options}):
        _show(sys.stdout, piece)
        answer += piece
    _show(sys.stdout, "\n")
    messages[:] = [*asked, {"role": "assistant", "content": answer}]


def stream_answer(http: httpx.Client, body: dict[str, Any]) -> Iterator[str]:
    """The pieces of the answer. A broken connection is resumed for a while."""
    event_id = ""
    request = http.build_request("POST", "/v1/chat/completions", json={**body, "stream": True})
    give_up_at: float | None = None
    while True:
        try:
            for seen_id, piece in _events(http, request):
                event_id, give_up_at = seen_id, None
                yield piece
            return
        except httpx.TransportError as error:
            give_up_at = give_up_at or time.monotonic() + RESUME_FOR_S
            if not event_id or time.monotonic() > give_up_at:
                raise ChatError(f"{http.base_url}: {error}") from error
        time.sleep(RESUME_PAUSE_S)
        path = f"/v1/streams/{event_id.partition(';')[0]}"
        request = http.build_request("GET", path, headers={"Last-Event-ID": event_id})


def _events(http: httpx.Client, request: httpx.Request) -> Iterator[tuple[str, str]]:
    """Event id and text of each event; ChatError where the server tells of an error."""
    event_id = ""
    response = http.send(request, stream=True)
    try:
        if response.is_error:
            raise ChatError(_error_text(response.read(), response.status_code))
        for line in response.iter_lines():
            if line.startswith("id: "):
                event_id = line.removeprefix("id: ")
            elif line == "data: [DONE]":
                return
            elif line.startswith("data: "):
                yield event_id, _piece(json.loads(line.removeprefix("data: ")))
    finally:
        response.close()
    raise httpx.RemoteProtocolError("the stream ended in the middle")


def _piece(chunk: dict[str, Any]) -> str:
    if "error" in chunk:
        raise ChatError(str(chunk["error"]["message"]))
    choices = cast("list[dict[str, Any]]", chunk["choices"])
    return "".join(str(choice["delta"].get("content") or "") for choice in choices)


def _error_text(body: bytes, status: int) -> str:
    try:
        return f"{json.loads(body)['error']['message']} ({status})"
    except (ValueError, KeyError, TypeError):
        return f"the server answered {status}"


def _show(out: TextIO, text: str) -> None:
    out.write(text)
    out.flush()
