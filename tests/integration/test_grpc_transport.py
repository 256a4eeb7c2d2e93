"""Which of gRPC's transports is used: settled before gRPC is imported, by names that it knows."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

IMPORTED = """
import os, sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "grpc":
            print(os.environ.get("GRPC_EXPERIMENTS"))

sys.meta_path.insert(0, Watch())
import {module}
"""
ECHO = """
import asyncio, os
import segue
import grpc

async def main():
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary("/nobody/here")
        for _ in range(300):
            try:
                await call(b"")
            except grpc.aio.AioRpcError as error:
                assert error.code() is grpc.StatusCode.UNIMPLEMENTED, error
        print(sum(wakes(thread) for thread in os.listdir("/proc/self/task")))
    await server.stop(0)

def wakes(thread):
    lines = open(f"/proc/self/task/{thread}/status").read().splitlines()
    values = dict(line.split(":", 1) for line in lines)
    is_of_pool = values["Name"].strip() == "event_engine"
    return int(values["voluntary_ctxt_switches"]) if is_of_pool else 0

asyncio.run(main())
"""


def _run(code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if k != "GRPC_EXPERIMENTS"}
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**inherited, **environ},
    )


@pytest.mark.parametrize(
    "module",
    [
        *("scheduler_svc.__main__", "gateway_svc.__main__", "executor_svc.process"),
        *("segue.__main__", "segue.commands.ctl"),
    ],
)
def test_it_is_settled_before_grpc_is_imported(module: str) -> None:
    code = IMPORTED.format(module=module) + "import segue.admin_client\n"
    assert _run(code).stdout.split("\n")[0] == "-event_engine_client,-event_engine_listener"


def test_the_pool_of_threads_does_not_take_part() -> None:
    """And gRPC, of the version that we install, knows the names: it would say so otherwise."""
    ours = _run(ECHO)
    assert ours.stderr == ""
    theirs = _run(ECHO, GRPC_EXPERIMENTS="event_engine_client,event_engine_listener")
    assert int(ours.stdout) < int(theirs.stdout) / 4
