"""A call that is being answered: its choices, and a way to wait until something is new.

Knows nothing about HTTP or sessions. Invariant: who reads it holds cursors of its own into the
choices, so nothing is lost or doubled when another reader takes over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gateway_svc.api_error import ApiError
from gateway_svc.call import Call
from gateway_svc.choice import Choice
from gateway_svc.tokenizer import Tokenizer


class LiveCall:
    """`error` ends the whole call. `reader` counts takeovers: an older reader stops quietly."""

    def __init__(self, call: Call, choices: Sequence[Choice]) -> None:
        assert len(call.submissions) == len(choices)
        self.call = call
        self.choices = list(choices)
        self.error: ApiError | None = None
        self.reader = 0
        self._waiting: list[asyncio.Future[None]] = []

    @classmethod
    def new(cls, call: Call, tokenizer: Tokenizer) -> LiveCall:
        shape = call.shape
        return cls(call, [Choice(s, tokenizer, shape.text_rules(s)) for s in call.submissions])

    @property
    def call_id(self) -> str:
        return self.call.call_id

    @property
    def is_accepted(self) -> bool:
        return all(choice.is_accepted for choice in self.choices)

    @property
    def has_rows(self) -> bool:
        return any(choice.token_ids for choice in self.choices)

    @property
    def is_ended(self) -> bool:
        return self.error is not None or all(c.end is not None for c in self.choices)

    def take_over(self) -> int:
        """Makes the caller the only reader; the one before it stops."""
        self.reader += 1
        self.notify()
        return self.reader

    def fail(self, error: ApiError) -> None:
        if self.error is None:
            self.error = error
        self.notify()

    def notify(self) -> None:
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if not one.done():
                one.set_result(None)

    async def changed(self) -> None:
        """Returns at the next change. What is checked before, without awaiting, is not missed."""
        one: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(one)
        try:
            await one
        except asyncio.CancelledError:  # a wait with a bound; nobody may notify for long
            if one in self._waiting:
                self._waiting.remove(one)
            raise
