"""A gateway that reads and discards: keeps a number of requests running, and looks at no token.

`python -m tests.bench.discarding_gateway --scheduler HOST:PORT --streams N`: prints a line when all
of them run, ends when its standard input does, and prints the tokens that came. Knows Session, no
text and no client. Invariant: a request that has ended is replaced at once, so N run all the time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sys
import time
from itertools import count
from typing import Any

import grpc
import uvloop

from segue import wire
from segue.grpc_server import open_channel
from segue.types import SamplingParams, Submission
from segue.v1 import scheduler_pb2, scheduler_pb2_grpc, types_pb2

Request = scheduler_pb2.SessionRequest
VOCAB_SIZE = 50_000
HEARTBEAT_S = 0.5
REDIAL_S = 0.1
GATEWAY_ID = "g0"


class DiscardingGateway:
    """Prompts are random; the first of each stream is shorter, so that ends come one by one."""

    def __init__(self, num_streams: int, prompt_tokens: int, output_tokens: int) -> None:
        self.num_streams = num_streams
        self.num_tokens = 0
        self.all_run = asyncio.Event()
        self._prompt_tokens = prompt_tokens
        self._output_tokens = output_tokens
        self._random = random.Random(1)
        self._numbers = count()
        self._begun: set[str] = set()
        self._epoch = 0
        self._outgoing: asyncio.Queue[Request] = asyncio.Queue()

    async def run(self, address: str) -> None:
        """Until cancelled; a scheduler that does not lead yet is asked again."""
        while not self._epoch:
            try:
                await self._run_session(address)
            except grpc.aio.AioRpcError:
                if self._epoch:
                    raise
                await asyncio.sleep(REDIAL_S)

    async def _run_session(self, address: str) -> None:
        self._outgoing = asyncio.Queue()
        async with open_channel(address) as channel:
            stub: Any = scheduler_pb2_grpc.SchedulerServiceStub(channel)
            hello = scheduler_pb2.SessionHello(
                protocol_version=wire.OLDEST_PROTOCOL_VERSION,
                newest_protocol_version=wire.PROTOCOL_VERSION,
                gateway_id=GATEWAY_ID,
                session_id="bench",
            )
            self._outgoing.put_nowait(Request(hello=hello))
            call = stub.Session()
            tasks = [asyncio.create_task(self._beat()), asyncio.create_task(self._write(call))]
            try:
                while (response := await call.read()) is not grpc.aio.EOF:
                    self._receive(response)
            finally:
                call.cancel()
                for task in tasks:
                    task.cancel()

    async def _write(self, call: Any) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError):  # the reader shows it
            while True:
                await call.write(await self._outgoing.get())

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            self._outgoing.put_nowait(Request(alive=types_pb2.Alive(epoch=self._epoch)))

    def _receive(self, response: scheduler_pb2.SessionResponse) -> None:
        match response.WhichOneof("message"):
            case "outputs":
                outputs = response.outputs
                self.num_tokens += len(outputs.token_ids)
                if not self.all_run.is_set():
                    self._begun.update(outputs.request_ids)
                    if len(self._begun) >= self.num_streams:
                        self.all_run.set()
                if outputs.finish_rows:
                    self._submit([self._output_tokens] * len(outputs.finish_rows))
            case "hello_ack":
                self._epoch = response.hello_ack.leader.epoch
                shares = range(1, self.num_streams + 1)
                self._submit([self._output_tokens * i // self.num_streams + 1 for i in shares])
            case "rejected":
                raise RuntimeError(response.rejected.message)
            case _:
                pass

    def _submit(self, max_tokens: list[int]) -> None:
        submissions = [wire.submission_to_proto(self._submission(limit)) for limit in max_tokens]
        self._outgoing.put_nowait(Request(submit=scheduler_pb2.Submit(submissions=submissions)))

    def _submission(self, max_tokens: int) -> Submission:
        number = next(self._numbers)
        prompt = tuple(self._random.randrange(VOCAB_SIZE) for _ in range(self._prompt_tokens))
        request_id = f"cmpl-{number:032x}-0"
        params = SamplingParams(seed=number, max_tokens=max_tokens, temperature=0.0)
        return Submission(request_id, prompt, params, time.time_ns() // 1_000_000)


async def serve(arguments: argparse.Namespace) -> None:
    gateway = DiscardingGateway(arguments.streams, arguments.prompt_tokens, arguments.output_tokens)
    running = asyncio.create_task(gateway.run(arguments.scheduler))
    started = asyncio.create_task(gateway.all_run.wait())
    await asyncio.wait({running, started}, return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        running.result()
    print("all run", flush=True)
    ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    await asyncio.wait({running, ended}, return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        running.result()
    print(gateway.num_tokens, flush=True)
    running.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scheduler", required=True)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=1024)
    uvloop.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
