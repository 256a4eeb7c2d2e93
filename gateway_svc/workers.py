"""Several gateways on one port: starts them, starts again who was killed, stops all in the end.

Knows processes and flags, no HTTP and no scheduler. Each worker is a whole gateway with an id of
its own, `ID.0`, `ID.1`, …, that listens on the shared port itself (SO_REUSEPORT: the kernel deals
connections out), so whatever holds for two gateways holds for two workers. Invariant: the port is
ours as long as this process lives, and no worker outlives it.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
import time
from collections.abc import Sequence

from gateway_svc.config import GatewayConfig
from segue.child import ChildGuard, GuardedProcess

log = logging.getLogger("segue.gateway")
# One that fails sooner by itself would fail again: that ends all, with its exit code.
MIN_LIFE_S = 5.0
RESTART_DELAY_S = 0.1
KILL_AFTER_GRACE_S = 5.0


def listen(host: str, port: int, *, shared: bool) -> socket.socket:
    """A bound socket that does not listen yet. OSError where the port is somebody else's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    one = socket.socket(family, socket.SOCK_STREAM)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        one.bind((host, port))
    except OSError:
        one.close()
        raise
    return one


def reserve(host: str, port: int) -> socket.socket:
    """Holds the port for workers: bound and never listening, so that no connection comes to it."""
    listen(host, port, shared=False).close()  # fails where a stranger has it, who may share it
    return listen(host, port, shared=True)


class Workers:
    def __init__(self, config: GatewayConfig, port: int, arguments: Sequence[str]) -> None:
        """`arguments`: of this process; the workers get them too, and what is their own behind."""
        self._guard = ChildGuard()
        self._grace_s = config.drain_grace_s
        self._is_stopping = False
        self._code = 0
        self._commands = [
            worker_command(config, port, arguments, index) for index in range(config.workers)
        ]
        self._workers = [GuardedProcess(self._guard) for _ in self._commands]

    async def run(self) -> int:
        """Until SIGTERM or SIGINT, and all have ended; the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, number)
        await asyncio.gather(*(self._keep(index) for index in range(len(self._workers))))
        self._guard.close()
        return self._code

    async def _keep(self, index: int) -> None:
        worker = self._workers[index]
        while not self._is_stopping:
            started = time.monotonic()
            await worker.start(self._commands[index])
            if self._is_stopping:  # since it was being started, when no signal could reach it
                worker.send(signal.SIGTERM)
            code = await worker.wait()
            if self._is_stopping:
                return
            log.warning("worker %d ended with %d", index, code)
            if code > 0 and time.monotonic() - started < MIN_LIFE_S:
                self._code = code
                self._stop(signal.SIGTERM)
                return
            await asyncio.sleep(RESTART_DELAY_S)

    def _stop(self, number: signal.Signals) -> None:
        """A second signal is passed on too: the workers do not wait for their grace then."""
        if not self._is_stopping:
            loop = asyncio.get_running_loop()
            loop.call_later(self._grace_s + KILL_AFTER_GRACE_S, self._send, signal.SIGKILL)
        self._is_stopping = True
        self._send(number)

    def _send(self, number: signal.Signals) -> None:
        for worker in self._workers:
            worker.send(number)


def worker_command(
    config: GatewayConfig, port: int, arguments: Sequence[str], index: int
) -> tuple[str, ...]:
    own = ["--workers", "1", "--reuse-port", "--port", str(port)]
    own += ["--gateway-id", f"{config.gateway_id}.{index}"]
    ports = config.metrics_ports[index : index + 1]
    own += ["--metrics-ports", ",".join(ports)]
    return (sys.executable, "-m", "gateway_svc", *arguments, *own)


async def serve_workers(config: GatewayConfig, arguments: Sequence[str]) -> int:
    with reserve(config.host, config.port) as held:
        host, port = held.getsockname()[:2]
        count, gateway_id = config.workers, config.gateway_id
        log.info("%s has %d workers on http://%s:%d", gateway_id, count, host, port)
        return await Workers(config, port, arguments).run()
