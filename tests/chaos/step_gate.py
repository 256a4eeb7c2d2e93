"""How many steps executors may run, so that a test kills in the middle of streams on any machine.

Knows `SEGUE_FAULT_STEP_PIPE` alone. Invariant: closed, no step begins that was not allowed; open,
it costs a step one read.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

MANY = 60_000  # fits into a pipe; no test has as many steps


class StepGate:
    """Open at first. `environ` is for the `segue serve` that it holds back."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self._pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, 1 << 16)
        self.num_allowed = 0  # since it was closed
        self.environ = {"SEGUE_FAULT_STEP_PIPE": str(path)}
        self.open()

    def open(self) -> None:
        self.close()
        self.allow(MANY)

    def close(self) -> None:
        """A step that has begun goes on."""
        self.num_allowed = 0
        try:
            os.read(self._pipe, 1 << 16)
        except BlockingIOError:
            return

    def allow(self, num_steps: int) -> None:
        """As many more steps, of all executors together."""
        self.num_allowed += os.write(self._pipe, bytes(num_steps))

    def remove(self) -> None:
        """Who waits goes on."""
        os.close(self._pipe)
