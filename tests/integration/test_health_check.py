"""`python -m segue.health_check`, as containers run it, of servers that are well or are not."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
import pytest

from segue.grpc_server import SCHEDULER_SERVICE, Health, bind, make_server

pytestmark = pytest.mark.slow


async def health_check(target: str) -> tuple[int | None, str]:
    """Its exit code, and what it said."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "segue.health_check", target),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return process.returncode, output.decode()


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/ready" else 503)
        self.end_headers()
        self.wfile.write(b"no scheduler")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def http_address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


async def test_http_200_is_well(http_address: str) -> None:
    assert await health_check(f"http://{http_address}/ready") == (0, "")


async def test_anything_else_says_why_not(http_address: str) -> None:
    code, said = await health_check(f"http://{http_address}/other")
    assert code == 1
    assert said == f"http://{http_address}/other: 503 no scheduler\n"


async def test_nobody_there_is_not_well(free_port: int) -> None:
    for target in (f"http://127.0.0.1:{free_port}/ready", f"127.0.0.1:{free_port}/"):
        code, said = await health_check(target)
        assert code == 1
        assert said.count("\n") == 1


async def test_a_grpc_service_is_well_while_it_is_ready() -> None:
    server = make_server()
    health = Health(server, [SCHEDULER_SERVICE])
    port = bind(server, "127.0.0.1:0")
    await server.start()
    target = f"127.0.0.1:{port}/{SCHEDULER_SERVICE}"
    try:
        await health.set_ready(is_ready=True)
        assert await health_check(target) == (0, "")
        await health.set_ready(is_ready=False)
        assert await health_check(target) == (1, f"{target}: NOT_SERVING\n")
        code, said = await health_check(f"127.0.0.1:{port}/segue.v1.Nobody")
        assert code == 1
        assert grpc.StatusCode.NOT_FOUND.name in said
    finally:
        await health.stop()
        await server.stop(None)
