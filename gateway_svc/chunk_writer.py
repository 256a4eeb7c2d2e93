"""Chunks as JSON text, nearly all of which is the same from token to token.

Knows what of a chunk may differ, and leaves its shape to `answers.py`. Invariant: the text is that
of the chunk which `Answer.next` makes, byte for byte.
"""

from __future__ import annotations

from json.encoder import encode_basestring

from gateway_svc.answers import Answer
from gateway_svc.call import CallKind
from gateway_svc.cursor import ChoiceDelta
from gateway_svc.live_call import LiveCall
from gateway_svc.sse import to_json


class ChunkWriter:
    """Of one call. A plain chunk, with text and nothing else, is its frame around the text."""

    def __init__(self, live: LiveCall, answer: Answer) -> None:
        self._answer = answer
        shape = live.call.shape
        self._hole = '"content":""' if shape.kind is CallKind.CHAT else '"text":""'
        varies = shape.return_token_ids or shape.continuous_usage
        self._is_plain = [
            not varies and choice.submission.sampling_params.num_logprobs is None
            for choice in live.choices
        ]
        self._frames: dict[int, tuple[str, str]] = {}

    def next(self, delta: ChoiceDelta) -> str | None:
        """None if a client would see nothing in it."""
        if delta.end is not None or not self._is_plain[delta.index]:
            chunk = self._answer.next(delta)
            return None if chunk is None else to_json(chunk)
        if not delta.text:
            return None
        frame = self._frames.get(delta.index)
        if frame is None:
            frame = self._frames[delta.index] = self._frame(delta.index)
        return f"{frame[0]}{encode_basestring(delta.text)}{frame[1]}"

    def _frame(self, index: int) -> tuple[str, str]:
        """Inside of a string the hole would have its quotes escaped, so the last one is it."""
        head, hole, tail = to_json(self._answer.empty_chunk(index)).rpartition(self._hole)
        assert hole
        return head + hole[:-2], tail
