"""A real primary, its replica, and three Sentinels that fail over between them, on 127.0.0.1.

Knows command lines of Redis and Valkey; knows nothing about Segue. Invariant: nothing outlives
`stop`; what is paused is resumed before it is stopped.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from segue.serve_plan import free_ports
from tests.redis_process import redis_binary, valkey_binary
from tests.served import wait_until

SERVICE = "segue"
NUM_SENTINELS = 3
DOWN_AFTER_MS = 2000  # a busy machine is no failover
FAILOVER_TIMEOUT_MS = 6000


@contextmanager
def running_sentinels() -> Generator[SentinelProcesses]:
    """With whatever server this machine has; skips where it has none."""
    binary = redis_binary() or valkey_binary()
    if binary is None:
        pytest.skip("no Redis server here")
    running = SentinelProcesses(binary).start()
    try:
        yield running
    finally:
        running.stop()


class SentinelProcesses:
    def __init__(self, binary: str) -> None:
        self._binary = binary
        self._directory = Path(tempfile.mkdtemp(prefix="segue-sentinel-"))
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        primary, replica = free_ports(2)
        self.ports: dict[str, int] = {"primary": primary, "replica": replica}
        self.sentinel_ports = free_ports(NUM_SENTINELS)

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.sentinel_ports)
        return f"redis+sentinel://{hosts}/{SERVICE}"

    def client(self, name: str) -> Any:
        return redis.Redis(port=self.ports[name], socket_timeout=5, decode_responses=True)

    def start(self) -> SentinelProcesses:
        try:
            self._start_server("primary")
            self._start_server("replica", "--replicaof", "127.0.0.1", str(self.ports["primary"]))
            self.wait_replicated()
            for number, port in enumerate(self.sentinel_ports):
                self._start_sentinel(number, port)
            wait_until(self._agree, "the sentinels know each other and the replica")
        except BaseException:
            self.stop()
            raise
        return self

    def _start_server(self, name: str, *options: str) -> None:
        home = self._directory / name
        home.mkdir()
        command = [self._binary, "--port", str(self.ports[name]), "--bind", "127.0.0.1"]
        command += ["--dir", str(home), "--appendonly", "yes", "--repl-diskless-sync-delay", "0"]
        self._run(name, [*command, *options])
        wait_until(lambda: _answers(self.ports[name]), f"the {name} answers")

    def _start_sentinel(self, number: int, port: int) -> None:
        """It writes what it learns into its file."""
        path = self._directory / f"sentinel-{number}.conf"
        lines = [f"port {port}", "bind 127.0.0.1", f"dir {self._directory}"]
        lines += [f"sentinel monitor {SERVICE} 127.0.0.1 {self.ports['primary']} 2"]
        lines += [f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}"]
        lines += [f"sentinel failover-timeout {SERVICE} {FAILOVER_TIMEOUT_MS}"]
        path.write_text("\n".join(lines) + "\n")
        self._run(f"sentinel-{number}", [self._binary, str(path), "--sentinel"])
        wait_until(lambda: _answers(port), f"sentinel {number} answers")

    def _run(self, name: str, command: list[str]) -> None:
        with (self._directory / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(command, stdout=log, stderr=log)

    def _agree(self) -> bool:
        for port in self.sentinel_ports:
            with redis.Redis(port=port, socket_timeout=5) as client:
                seen: Any = client.sentinel_master(SERVICE)
            if seen["num-other-sentinels"] != NUM_SENTINELS - 1 or seen["num-slaves"] != 1:
                return False
        return True

    def wait_replicated(self) -> None:
        """Until the replica has all that the primary has."""
        wait_until(lambda: self.client("primary").wait(1, 1000) == 1, "the replica has it all")

    def cut_replica_off(self) -> None:
        """It stands still, and what is written from now on is not sent to it."""
        self._processes["replica"].send_signal(signal.SIGSTOP)
        self.client("primary").execute_command("CLIENT", "KILL", "TYPE", "replica")

    def fail_over(self) -> None:
        """SIGKILL for the primary; returns when the replica is what the Sentinels name."""
        self._processes["primary"].kill()
        self._processes["primary"].wait()
        self._processes["replica"].send_signal(signal.SIGCONT)

        def has_role() -> bool:
            return self.client("replica").info("replication")["role"] == "master"

        wait_until(has_role, "the replica is promoted", 60.0)

    def stop(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)


def _answers(port: int) -> bool:
    try:
        with redis.Redis(port=port, socket_timeout=1) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False
