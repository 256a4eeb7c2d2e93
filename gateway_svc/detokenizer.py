"""The text of one choice, as it grows token by token.

Knows nothing about streams or clients. Invariant: text, its safe part, and where it ends are a pure
function of the token ids, however they come in pieces; so any gateway can go on from the ids. Half
a character is never shown: its bytes wait for the rest.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass

from gateway_svc.stop_strings import StopStrings
from gateway_svc.tokenizer import Tokenizer


@dataclass(slots=True, frozen=True)
class TextRules:
    """What a call says about its text. A terminal token (EOS, stop token id) is no part of it."""

    stops: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special_tokens: bool = True
    min_tokens: int = 0
    terminal_token_ids: frozenset[int] = frozenset()


class Detokenizer:
    """`text[:num_safe_chars]` may be shown. `stopped_by` is the stop string, once one was found."""

    def __init__(self, tokenizer: Tokenizer, rules: TextRules) -> None:
        self._tokenizer = tokenizer
        self._rules = rules
        self._stop_strings = StopStrings(rules.stops, include_in_output=rules.include_stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self.text = ""
        self.num_tokens = 0
        self.num_safe_chars = 0
        self.stopped_by: str | None = None

    def append(self, token_id: int) -> None:
        """Takes the next token. Not to be called after the text was stopped or flushed."""
        assert self.stopped_by is None
        self.num_tokens += 1
        new_text = self._decode(token_id)
        if not new_text:
            return
        new_from = len(self.text)
        self.text += new_text
        if self._rules.stops and self.num_tokens > self._rules.min_tokens:
            match = self._stop_strings.find(self.text, new_from)
            if match is not None:
                self.stopped_by = match.stop
                self.text = self.text[: match.cut]
                self.num_safe_chars = len(self.text)
                return
        self.num_safe_chars = len(self.text) - self._stop_strings.num_held_back(self.text)

    def flush(self) -> None:
        """No token will follow: shows what was held back, half a character as one U+FFFD."""
        if self.stopped_by is None:
            self.text += self._decoder.decode(b"", final=True)
        self.num_safe_chars = len(self.text)

    def _decode(self, token_id: int) -> str:
        rules = self._rules
        is_terminal = token_id in rules.terminal_token_ids and self.num_tokens >= rules.min_tokens
        if is_terminal and not rules.include_stop:
            return ""
        if rules.skip_special_tokens and self._tokenizer.is_special(token_id):
            return ""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))
