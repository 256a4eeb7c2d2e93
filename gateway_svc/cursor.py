"""How far a client has seen a choice, and whether what follows continues exactly that.

Knows nothing about SSE (see `sse.py`). Invariant (H25): a client that comes back goes on only if
the digest of the ids that it saw is that of the ids we have; otherwise it is told.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from gateway_svc.choice import Choice, ChoiceEnd

DIGEST_LENGTH = 16  # hex digits
END_MARK = "end"
EMPTY_DIGEST = hashlib.sha256().hexdigest()[:DIGEST_LENGTH]


@dataclass(slots=True, frozen=True)
class Position:
    num_tokens: int = 0
    num_chars: int = 0
    digest: str = EMPTY_DIGEST
    is_finished: bool = False  # its finish_reason was sent


def mark(index: int, position: Position) -> str:
    """A position as it stands in an event's id; empty before anything was sent."""
    if position == Position():
        return ""
    return _mark(
        index, position.num_tokens, position.num_chars, position.digest, position.is_finished
    )


class Standing(Enum):
    """A cursor against its choice: not computed that far again, the same, or something else."""

    BEHIND = "behind"
    SAME = "same"
    DIVERGED = "diverged"


@dataclass(slots=True, frozen=True)
class ChoiceDelta:
    """What is new in a choice: tokens `first_token`, …; text; and its end, once."""

    index: int
    first_token: int
    num_tokens: int
    text: str
    end: ChoiceEnd | None


class ChoiceCursor:
    def __init__(self, index: int, choice: Choice, start: Position | None = None) -> None:
        self.index = index
        self.choice = choice
        self._start = start or Position()
        self._num_tokens = self._start.num_tokens
        self._num_chars = self._start.num_chars
        self._is_finished = self._start.is_finished
        self._is_checked = self._start == Position()
        self._digest = hashlib.sha256()

    @property
    def is_done(self) -> bool:
        """That it saw the end is believed a client when the rest of what it says was checked."""
        return self._is_finished and self._is_checked

    def position(self) -> Position:
        if not self._is_checked:
            return self._start
        digest = self._digest.hexdigest()[:DIGEST_LENGTH]
        return Position(self._num_tokens, self._num_chars, digest, self._is_finished)

    def mark(self) -> str:
        """`mark` of the position, without one being made: an id is written for each token."""
        if not self._is_checked:
            return mark(self.index, self._start)
        num_tokens, num_chars, is_finished = self._num_tokens, self._num_chars, self._is_finished
        if not (num_tokens or num_chars or is_finished):
            return ""
        digest = self._digest.hexdigest()[:DIGEST_LENGTH]
        return _mark(self.index, num_tokens, num_chars, digest, is_finished)

    def standing(self) -> Standing:
        """To be SAME before `take`; stays so."""
        if self._is_checked:
            return Standing.SAME
        choice, start = self.choice, self._start
        if choice.num_answer_tokens < start.num_tokens:
            return Standing.BEHIND if choice.end is None else Standing.DIVERGED
        self._digest.update(_as_bytes(choice.token_ids[: start.num_tokens]))
        is_same = self._digest.hexdigest()[:DIGEST_LENGTH] == start.digest
        if not is_same or len(choice.shown_text) < start.num_chars:
            return Standing.DIVERGED
        self._is_checked = True
        return Standing.SAME

    def take(self) -> ChoiceDelta | None:
        """What is new since the last time; None if nothing is."""
        assert self._is_checked
        choice = self.choice
        first_token, num_tokens = self._num_tokens, choice.num_answer_tokens - self._num_tokens
        text = choice.text_from(self._num_chars)
        end = None if self._is_finished else choice.end
        if num_tokens == 0 and not text and end is None:
            return None
        self._digest.update(_as_bytes(choice.token_ids[first_token : choice.num_answer_tokens]))
        self._num_tokens += num_tokens
        self._num_chars += len(text)
        self._is_finished = self._is_finished or end is not None
        return ChoiceDelta(self.index, first_token, num_tokens, text, end)


def _mark(index: int, num_tokens: int, num_chars: int, digest: str, is_finished: bool) -> str:
    text = f"{index}:{num_tokens}:{num_chars}:{digest}"
    return f"{text}:{END_MARK}" if is_finished else text


def _as_bytes(token_ids: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(token_ids)}I", *token_ids)
