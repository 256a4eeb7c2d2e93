"""Serves calls: submits them, waits with bounds, and lets go of them when nobody reads.

Knows calls and the scheduler client, nothing about HTTP. Invariant: whatever ends a reader (the
answer is complete, its client left, an error), the call is released, and what was under way of it
is aborted.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable

from gateway_svc.answer_stream import AnswerStream
from gateway_svc.answers import Answer
from gateway_svc.api_error import internal, not_found, unavailable
from gateway_svc.call import Call
from gateway_svc.live_call import LiveCall
from gateway_svc.metrics import Standing
from gateway_svc.scheduler_client import SchedulerClient
from gateway_svc.sse import EventId
from gateway_svc.tokenizer import Tokenizer
from segue.types import FinishReason

# How often a call that waits looks whether it has waited too long.
POLL_S = 0.5
CLIENT_LEFT = "the client left"


class Gateway:
    def __init__(
        self, client: SchedulerClient, tokenizer: Tokenizer, scheduler_wait_s: float
    ) -> None:
        self.client = client
        self._tokenizer = tokenizer
        self._wait_s = scheduler_wait_s
        self.is_draining = False
        self.is_handing_over = False  # streams that end now go on elsewhere
        self._num_open = 0
        self._all_closed = asyncio.Event()
        self._all_closed.set()

    def open(self, call: Call) -> LiveCall:
        """Submits the call; to be followed by `close`."""
        availability = self.client.availability
        if availability.unavailable_for(time.monotonic()) > self._wait_s:
            raise unavailable("no scheduler answers, or it has no executor", self._retry_after_s())
        live = LiveCall.new(call, self._tokenizer)
        self.client.submit(live)
        self._count(1)
        self._update_busy()
        return live

    async def reopen(self, call_id: str) -> LiveCall:
        """A call that was begun before, here or elsewhere; to be followed by `close`."""
        live = self.client.ledger.find_call(call_id)
        if live is None:
            try:
                async with asyncio.timeout(self._wait_s):
                    live = await self.client.attach(call_id)
            except TimeoutError as error:
                raise unavailable("no scheduler answers", self._retry_after_s()) from error
        if live is None:
            raise not_found(f"there is no stream {call_id!r}", "stream_not_found")
        self.client.metrics.streams_resumed.add()
        self._count(1)
        return live

    def close(self, live: LiveCall, stream: AnswerStream | None = None) -> None:
        """This reader is done. The call stays if another reader has taken it over."""
        self._count(-1)
        if stream is not None and stream.has_diverged:
            self.client.metrics.streams_diverged.add()
        is_kept = self.is_handing_over and stream is not None
        if not is_kept and (stream is None or stream.is_current):
            self.client.release(live, CLIENT_LEFT)
        self._update_busy()

    def answer(self, live: LiveCall) -> Answer:
        return Answer(live, self._tokenizer)

    def stream(self, live: LiveCall, start: EventId | None = None) -> AnswerStream:
        return AnswerStream(live, self.answer(live), start)

    async def started(self, live: LiveCall) -> None:
        """Returns when the call is being served; raises where it is refused or nobody serves it."""
        deadline = time.monotonic() + self._wait_s
        while not (live.has_rows or live.is_ended):
            if live.is_accepted and self.client.availability.is_available:
                return
            if time.monotonic() > deadline:
                raise unavailable("no scheduler took the request", self._retry_after_s())
            await _poll(live.changed())
        if live.error is not None:
            raise live.error

    async def ended(self, live: LiveCall) -> None:
        """Returns when every choice has its end. Without a token yet, the wait has a bound."""
        availability = self.client.availability
        while not live.is_ended:
            if not live.has_rows and availability.unavailable_for(time.monotonic()) > self._wait_s:
                raise unavailable("no executor serves the request", self._retry_after_s())
            await _poll(live.changed())
        if live.error is not None:
            raise live.error
        for choice in live.choices:
            if choice.end is not None and choice.end.reason is FinishReason.ERROR:
                raise internal(choice.end.message or "the request failed")

    def check_open(self) -> None:
        if self.is_draining:
            raise unavailable("this gateway is stopping", 1)

    async def drained(self) -> None:
        """Returns when no answer is being given any more."""
        await self._all_closed.wait()

    def why_not_ready(self) -> str | None:
        if self.is_draining:
            return "stopping"
        self._update_busy()
        return self.client.availability.why_not_ready(time.monotonic())

    def metrics_page(self, kv_cache_usage: float | None = None) -> bytes:
        metrics, ledger = self.client.metrics, self.client.ledger
        num_running = ledger.num_running
        metrics.standing = Standing(
            num_running,
            ledger.num_waiting - num_running,
            self.client.availability.is_connected,
            kv_cache_usage,
        )
        return metrics.render()

    def _update_busy(self) -> None:
        is_busy = self.client.ledger.num_waiting > 0
        self.client.availability.set_busy(is_busy, time.monotonic())

    def _retry_after_s(self) -> int:
        return max(1, math.ceil(self.client.settings.lease_ttl_s))

    def _count(self, change: int) -> None:
        self._num_open += change
        if self._num_open:
            self._all_closed.clear()
        else:
            self._all_closed.set()


async def _poll(changed: Awaitable[None]) -> None:
    try:
        async with asyncio.timeout(POLL_S):
            await changed
    except TimeoutError:
        pass
