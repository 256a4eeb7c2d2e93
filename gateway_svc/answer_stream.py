"""The answer as server-sent events, from the beginning or from where a client left off.

Knows nothing about sockets. Invariant: each event's id names a position from which any gateway can
go on; a client gets the continuation of exactly what it saw, or an error, never another text.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from gateway_svc.answers import Answer
from gateway_svc.api_error import ApiError, internal
from gateway_svc.chunk_writer import ChunkWriter
from gateway_svc.cursor import ChoiceCursor, Standing
from gateway_svc.live_call import LiveCall
from gateway_svc.sse import DONE, EventId, event, event_id_text
from segue.types import FinishReason


class StreamDiverged(ApiError):
    """What the client saw is not what is being computed now (H25)."""

    def __init__(self) -> None:
        super().__init__(
            409,
            "the stream cannot be continued: its text was lost and came out differently",
            type="conflict_error",
            code="stream_diverged",
        )


class AnswerStream:
    """One reader of a call. Another reader of the same call ends this one quietly."""

    def __init__(self, live: LiveCall, answer: Answer, start: EventId | None = None) -> None:
        self._live = live
        self._answer = answer
        self._chunks = ChunkWriter(live, answer)
        self._start = start
        self._reader = live.take_over()
        self.has_diverged = False
        positions = {} if start is None else start.positions
        self._cursors = [
            ChoiceCursor(index, choice, positions.get(index))
            for index, choice in enumerate(live.choices)
        ]

    @property
    def is_current(self) -> bool:
        return self._live.reader == self._reader

    async def events(self) -> AsyncIterator[bytes]:
        try:
            if self._start is None:
                for chunk in self._opening():
                    yield chunk
            while self.is_current:
                for chunk in self._new_chunks():
                    yield chunk
                if all(cursor.is_done for cursor in self._cursors):
                    for chunk in self._closing():
                        yield chunk
                    return
                await self._live.changed()
        except ApiError as error:
            yield event(error.body())

    def _opening(self) -> Iterator[bytes]:
        for cursor in self._cursors:
            chunk = self._answer.opening(cursor.index)
            if chunk is not None:
                yield event(chunk, self._event_id())

    def _new_chunks(self) -> Iterator[bytes]:
        """Raises ApiError where the answer cannot go on."""
        for cursor in self._cursors:
            if self._live.error is not None:
                raise self._live.error
            standing = cursor.standing()
            if standing is Standing.DIVERGED:
                self.has_diverged = True
                raise StreamDiverged
            if standing is Standing.BEHIND:
                continue
            delta = cursor.take()
            if delta is None:
                continue
            if delta.end is not None and delta.end.reason is FinishReason.ERROR:
                raise internal(delta.end.message or "the request failed")
            chunk = self._chunks.next(delta)
            if chunk is not None:
                yield event(chunk, self._event_id())

    def _closing(self) -> Iterator[bytes]:
        is_sent = self._start is not None and self._start.is_usage_sent
        if self._live.call.shape.include_usage and not is_sent:
            yield event(self._answer.usage_chunk(), self._event_id(is_usage_sent=True))
        yield DONE

    def _event_id(self, *, is_usage_sent: bool = False) -> str:
        marks = [cursor.mark() for cursor in self._cursors]
        return event_id_text(self._live.call_id, marks, is_usage_sent=is_usage_sent)
