"""The wire codec with a stopwatch, so that encoding is told apart from scheduling.

Knows nothing about the wire. Invariant: what it returns is what the codec returns.
"""

from __future__ import annotations

import time

from segue.types import SchedulerOutput
from segue.wire import WireCodec


class TimedCodec(WireCodec):
    """Counts the time spent encoding steps, the only encoding on the path of every step."""

    def __init__(self) -> None:
        super().__init__()
        self.encode_s = 0.0

    def encode_step(self, plan: SchedulerOutput) -> bytes:
        started = time.thread_time()
        body = super().encode_step(plan)
        self.encode_s += time.thread_time() - started
        return body
