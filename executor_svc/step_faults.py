"""What tests do to a step before it runs: make it late, or make it wait until they allow it.

Knows nothing of what a step is. Invariant: without a pipe and a delay nothing happens; a pipe whose
writer has gone allows every step, so that no executor outlives a test that died.
"""

from __future__ import annotations

import os
import time
from pathlib import Path


class StepFaults:
    """`delay_s` before each step. `pipe`: a named pipe; each step first takes one byte of it.

    Opening waits until the test has opened its end. Where a stream is depends on time otherwise,
    and a test that kills in the middle of one would depend on the speed of the machine.
    """

    def __init__(self, delay_s: float = 0.0, pipe: Path | None = None) -> None:
        self._delay_s = delay_s
        self._pipe = None if pipe is None else os.open(pipe, os.O_RDONLY | os.O_CLOEXEC)

    def before_step(self) -> None:
        """On the thread that computes."""
        if self._pipe is not None:
            os.read(self._pipe, 1)
        if self._delay_s:
            time.sleep(self._delay_s)
