"""Whether this scheduler is of use: as a leader that makes progress, or as a standby.

Knows the loop and the lease; knows nothing about gRPC. Invariant: ready means progress, not a
living process; and nothing said here changes who leads.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from scheduler_svc.core.engine_state import EngineState
from scheduler_svc.core.events import PauseState
from scheduler_svc.lease import LeaseKeeper
from scheduler_svc.loop import EngineLoop


class Readiness:
    """`stall_s`: work waits and no step has ended for longer. Time is the monotonic clock's."""

    def __init__(
        self,
        lease: LeaseKeeper,
        loop: Callable[[], EngineLoop | None],
        stall_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lease = lease
        self._loop = loop
        self._stall_s = stall_s
        self._clock = clock
        self._num_steps = -1
        self._progress_at = clock()

    def is_ready(self) -> bool:
        return self.why_not_ready() is None

    def why_not_ready(self) -> str | None:
        loop = self._loop()
        if loop is None:
            return "redis is not available" if self._lease.is_store_down else None
        if loop.is_store_down:
            return "redis is not available"
        state, now = loop.core.state, self._clock()
        num_steps = state.counters.num_steps_finished
        if num_steps != self._num_steps or not _has_work(state):
            self._num_steps, self._progress_at = num_steps, now
        if now - self._progress_at > self._stall_s:
            return f"requests wait, and no step has ended for {now - self._progress_at:.1f} s"
        return None


def _has_work(state: EngineState) -> bool:
    """Requests that could make progress. While paused, none is expected to."""
    if state.pause_state is not PauseState.UNPAUSED:
        return False
    lanes = state.lanes.values()
    return bool(state.unplaced) or any(
        lane.policy is not None and lane.policy.num_unfinished() > 0 for lane in lanes
    )
