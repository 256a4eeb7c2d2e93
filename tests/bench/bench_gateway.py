"""The gateway alone: tokens/s that a core of it streams as server-sent events.

`python -m tests.bench.bench_gateway [--streams 256] [--workers 1] [--seconds 10] [--json FILE]`
The real gateway, in front of a scheduler that costs nothing and has a token for each stream in each
step, and clients that read and discard: three kinds of processes. Each token is an event with an id
from which a client could go on. The figure is tokens over the gateway's CPU time, which another
load on the machine hardly changes; tokens/s by the clock are what this machine had left.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import uvloop

from segue.serve_plan import free_ports
from tests.bench.bench_line import running
from tests.bench.bench_serving import default_model
from tests.bench.served_counters import cpu_seconds
from tests.served import wait_until

OUTPUT_TOKENS = 2000


class DiscardingClients:
    """`num_streams` connections, each with one streaming completion after another."""

    def __init__(self, port: int, num_streams: int, path: str) -> None:
        self.num_events = 0
        self.num_streams_begun = 0
        self._port = port
        self.num_streams = num_streams
        asked: dict[str, Any] = {"prompt": "x"}
        if "chat" in path:
            asked = {"messages": [{"role": "user", "content": "x"}]}
        asked |= {"model": "m", "max_tokens": OUTPUT_TOKENS, "stream": True, "ignore_eos": True}
        body = json.dumps(asked).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
        self._request = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(self.num_streams):
                group.create_task(self._stream())

    async def _stream(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        while True:
            writer.write(self._request)
            is_first = True
            while True:
                data = await reader.read(1 << 16)
                if not data:
                    raise RuntimeError("the gateway closed a stream")
                if is_first:
                    if not data.startswith(b"HTTP/1.1 200"):
                        raise RuntimeError(data[:500].decode())
                    self.num_streams_begun += 1
                    is_first = False
                self.num_events += data.count(b"data: {")
                if b"data: [DONE]" in data and data.endswith(b"0\r\n\r\n"):
                    break


async def load(clients: DiscardingClients, pids: list[int], seconds: float) -> dict[str, float]:
    task = asyncio.create_task(clients.run())
    while clients.num_streams_begun < clients.num_streams and not task.done():
        await asyncio.sleep(0.05)
    await asyncio.sleep(1.0)
    began, events, cpu = time.perf_counter(), clients.num_events, sum(map(cpu_seconds, pids))
    await asyncio.wait({task}, timeout=seconds)
    if task.done():
        task.result()
    found = {
        "seconds": time.perf_counter() - began,
        "tokens": clients.num_events - events,
        "cpu_s": sum(map(cpu_seconds, pids)) - cpu,
    }
    task.cancel()
    return found


def measure(model: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    source_port, port = free_ports(2)
    with ExitStack() as stack:
        python = (sys.executable, "-m")
        profile = ("cProfile", "-o", str(arguments.profile), "-m") if arguments.profile else ()
        source = f"127.0.0.1:{source_port}"
        stack.enter_context(running(*python, "tests.bench.token_source", "--listen", source))
        gateway = stack.enter_context(
            running(
                *(*python, *profile, "gateway_svc", "--model", str(model), "--port", str(port)),
                *("--schedulers", source, "--served-model-name", "m", "--drain-grace-s", "0"),
                *("--workers", str(arguments.workers)),
            )
        )
        for _ in range(8 * arguments.workers):  # each time another connection, so another worker
            wait_until(lambda: is_ready(port), "the gateway is ready")
        clients = DiscardingClients(port, arguments.streams, arguments.path)
        found = uvloop.run(load(clients, processes(gateway.pid), arguments.seconds))
    return {
        "streams": arguments.streams,
        "workers": arguments.workers,
        "path": arguments.path,
        "tokens_per_s": round(found["tokens"] / found["seconds"]),
        "tokens_per_s_of_a_core": round(found["tokens"] / found["cpu_s"]),
        "cpu_us_per_token": round(found["cpu_s"] / found["tokens"] * 1e6, 2),
    }


def processes(pid: int) -> list[int]:
    """This one and its children: the workers."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *map(int, children)]


def is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=2) as response:
            return response.status == 200
    except OSError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, help="model directory; default: the demo model")
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--path", default="/v1/completions", help="or /v1/chat/completions")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    parser.add_argument("--profile", type=Path, help="cProfile of the gateway; it slows it down")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="segue-bench-model-") as directory:
        report = measure(arguments.model or default_model(Path(directory)), arguments)
    print(
        f"{report['streams']} streams of {report['path']}, {report['workers']} workers: "
        f"{report['tokens_per_s']} tokens/s by the clock, {report['tokens_per_s_of_a_core']} of a "
        f"core, {report['cpu_us_per_token']} µs of CPU a token"
    )
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
