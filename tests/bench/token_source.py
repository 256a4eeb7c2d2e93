"""A scheduler that costs nothing: each request gets a token a step, as fast as its gateway reads.

`python -m tests.bench.token_source --listen HOST:PORT`, until SIGTERM. Speaks Session, decides
nothing. Invariant: one message a step with a row for each request, as the real one sends it, and a
gateway that reads slowly is waited for (gRPC's flow control).
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import AsyncIterator
from typing import Any

import grpc
import uvloop

from segue import wire
from segue.grpc_server import make_server
from segue.types import Finish, FinishReason, OutputColumns, Usage
from segue.v1 import scheduler_pb2, scheduler_pb2_grpc, types_pb2

Response = scheduler_pb2.SessionResponse
HEARTBEAT_S = 0.5
TOKENS = list(b"a letter is a token of this answer ")
STEP_S = 0.0005  # a step takes this long at least, so that requests are let in


class TokenSource(scheduler_pb2_grpc.SchedulerServiceServicer):
    def __init__(self) -> None:
        self._num_steps = 0

    async def Session(
        self, request_iterator: AsyncIterator[scheduler_pb2.SessionRequest], context: Any
    ) -> AsyncIterator[Response]:
        leader = types_pb2.Leader(epoch=1, leader_id="bench")
        yield Response(hello_ack=scheduler_pb2.SessionHelloAck(leader=leader, max_model_len=8192))
        limits: dict[str, int] = {}
        counts: dict[str, int] = {}
        accepted: list[str] = []
        reader = asyncio.create_task(_read(request_iterator, limits, accepted))
        try:
            while not reader.done():
                if accepted:
                    new, accepted[:] = list(accepted), []
                    counts.update(dict.fromkeys(new, 0))
                    message = scheduler_pb2.Accepted(request_ids=new, next_indices=[0] * len(new))
                    yield Response(accepted=message)
                if counts:
                    yield Response(outputs=self._step(limits, counts))
                    await asyncio.sleep(STEP_S)
                else:
                    yield Response(alive=types_pb2.Alive(epoch=1))
                    await asyncio.sleep(0.05)
        finally:
            reader.cancel()

    def _step(self, limits: dict[str, int], counts: dict[str, int]) -> scheduler_pb2.Outputs:
        self._num_steps += 1
        request_ids, num_rows = list(counts), len(counts)
        indices = list(counts.values())
        token = TOKENS[self._num_steps % len(TOKENS)]
        outputs = OutputColumns(
            request_ids, indices, [1] * num_rows, [token] * num_rows, [0] * num_rows
        )
        for row, request_id in enumerate(request_ids):
            count = counts[request_id] = counts[request_id] + 1
            if count >= limits[request_id]:
                outputs.finishes[row] = Finish(FinishReason.LENGTH, Usage(1, count))
                del counts[request_id], limits[request_id]
        return wire.outputs_to_proto(1, self._num_steps, outputs)

    async def GetStatus(
        self, request: scheduler_pb2.GetStatusRequest, context: Any
    ) -> scheduler_pb2.GetStatusResponse:
        lane = scheduler_pb2.LaneStatus(is_connected=True)
        return scheduler_pb2.GetStatusResponse(num_steps_finished=self._num_steps, lanes=[lane])


async def _read(
    requests: AsyncIterator[scheduler_pb2.SessionRequest],
    limits: dict[str, int],
    accepted: list[str],
) -> None:
    async for request in requests:
        for submission in request.submit.submissions:
            limits[submission.request_id] = submission.sampling_params.max_tokens
            accepted.append(submission.request_id)
        if request.WhichOneof("message") == "abort":
            limits[request.abort.request_id] = 0  # its next token is its last


async def serve(listen: str) -> None:
    server: grpc.aio.Server = make_server()
    scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(TokenSource(), server)
    server.add_insecure_port(listen)
    await server.start()
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await stopped.wait()
    await server.stop(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--listen", required=True)
    uvloop.run(serve(parser.parse_args().listen))


if __name__ == "__main__":
    main()
