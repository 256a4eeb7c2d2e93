"""One process of a `serve`: started by exec, its lines shown and logged, ended with its parent.

Knows operating system processes; knows nothing about services or when to restart one. Invariant: a
child never outlives its parent, however that dies (`child_guard.py`), and the identity of a running
child is noted before `start` returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from segue.console import Console
from segue.process_identity import ProcessIdentity
from segue.state_directory import StateDirectory

GUARD = Path(__file__).with_name("child_guard.py")
CHUNK_BYTES = 1 << 16
LAST_OUTPUT_S = 0.5


@dataclass(slots=True, frozen=True)
class ChildSpec:
    """What to run. `stage` orders: stages are stopped from the highest to the lowest."""

    name: str
    command: tuple[str, ...]
    stage: int
    is_ready: Callable[[], Awaitable[bool]]
    port: int | None = None
    environ: Mapping[str, str] = field(default_factory=dict[str, str])  # besides our own


class ChildGuard:
    """Elsewhere than on Linux: one process that kills the children when we are gone."""

    def __init__(self) -> None:
        self._watcher: subprocess.Popen[str] | None = None
        if sys.platform != "linux":
            command = [sys.executable, "-I", "-S", str(GUARD), "watch"]
            self._watcher = subprocess.Popen(
                command, stdin=subprocess.PIPE, text=True, start_new_session=True
            )

    def wrap(self, command: tuple[str, ...]) -> list[str]:
        if self._watcher is not None:
            return list(command)
        return [sys.executable, "-I", "-S", str(GUARD), "exec", str(os.getpid()), *command]

    def tell(self, line: str) -> None:
        if self._watcher is not None and self._watcher.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._watcher.stdin.write(line + "\n")
                self._watcher.stdin.flush()

    def close(self) -> None:
        self.tell("done")


class GuardedProcess:
    """Started by exec, again and again if need be; a guard is told of each start and end."""

    def __init__(self, guard: ChildGuard) -> None:
        self._guard = guard
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, command: tuple[str, ...], **options: Any) -> asyncio.subprocess.Process:
        """`options`: of asyncio.create_subprocess_exec."""
        # A session of its own: the terminal's Ctrl-C is for the parent, which stops us in order.
        self._process = await asyncio.create_subprocess_exec(
            *self._guard.wrap(command), start_new_session=True, **options
        )
        self._guard.tell(f"+{self._process.pid}")
        return self._process

    async def wait(self) -> int:
        """The exit code, negative for a signal."""
        process = self._process
        assert process is not None
        code = await process.wait()
        self._guard.tell(f"-{process.pid}")
        return code

    def send(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)


class Child:
    """A process that may be started again and again under one name."""

    def __init__(
        self, spec: ChildSpec, directory: StateDirectory, console: Console, guard: ChildGuard
    ) -> None:
        self.spec = spec
        self.identity: ProcessIdentity | None = None
        self.last_line = ""
        self._directory = directory
        self._console = console
        self._process = GuardedProcess(guard)
        self._pump: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        return self.identity.pid if self.identity else None

    async def start(self) -> None:
        process = await self._process.start(
            self.spec.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **self.spec.environ},
        )
        self.identity = ProcessIdentity.of(process.pid)
        self._pump = asyncio.create_task(self._show_lines(process))

    async def wait(self) -> int:
        """The exit code, negative for a signal, once all that it said is shown."""
        pump = self._pump
        assert pump is not None
        code = await self._process.wait()
        await asyncio.wait({pump}, timeout=LAST_OUTPUT_S)
        pump.cancel()
        return code

    def send(self, number: signal.Signals) -> None:
        self._process.send(number)

    async def _show_lines(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        with contextlib.ExitStack() as stack:
            log: TextIO | None = None
            # A full disk takes the log and not the service: its lines are on the terminal.
            with contextlib.suppress(OSError):
                log = stack.enter_context(self._directory.open_log(self.spec.name))
            rest = b""
            while chunk := await process.stdout.read(CHUNK_BYTES):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    self._show(line, log)
                if b"\r" in rest:
                    self._console.progress(self.spec.name, _last_part(rest))
            if rest:
                self._show(rest, log)

    def _show(self, line: bytes, log: TextIO | None) -> None:
        text = _last_part(line)
        if text.strip():
            self.last_line = text
        self._console.show(self.spec.name, text)
        if log is not None:
            with contextlib.suppress(OSError):
                log.write(text + "\n")


def _last_part(line: bytes) -> str:
    """What a terminal would show of a line that a progress bar has written over."""
    return line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")
