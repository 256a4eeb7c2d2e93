"""What still goes out on a stream that has ended."""

from __future__ import annotations

from typing import Any, cast

import grpc

from executor_svc.service import ExecuteStream
from segue.v1 import executor_pb2, types_pb2

ALIVE = types_pb2.Alive(epoch=1)


class RecordingContext:
    def __init__(self) -> None:
        self.written: list[executor_pb2.ExecuteResponse] = []

    async def write(self, message: executor_pb2.ExecuteResponse) -> None:
        self.written.append(message)


async def written_after_end(*, is_fenced: bool) -> list[executor_pb2.ExecuteResponse]:
    stream, context = ExecuteStream(), RecordingContext()
    stream.send(alive=ALIVE)
    stream.end(grpc.StatusCode.ABORTED, is_fenced=is_fenced)
    stream.send(alive=ALIVE)
    await stream.write_to(cast(Any, context))
    return context.written


async def test_h17_fenced_stream_sends_nothing_that_waited() -> None:
    assert await written_after_end(is_fenced=True) == []


async def test_last_words_go_out_and_nothing_after_them() -> None:
    """Refused and Goodbye are sent and the stream is ended in one breath."""
    written = await written_after_end(is_fenced=False)
    assert written == [executor_pb2.ExecuteResponse(alive=ALIVE)]
