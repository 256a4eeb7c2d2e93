"""Whether requests are being served, and for how long they have not been.

Knows nothing about how that is found out; time is told to it. Invariant: ready means progress, not
a living process: work that waits while no step ends is not ready after `stall_s`, and a gateway
that never had a scheduler with an executor is not ready at all.
"""

from __future__ import annotations


class Availability:
    def __init__(self, stall_s: float, now: float) -> None:
        self._stall_s = stall_s
        self._is_connected = False
        self._has_executor = False
        self._is_store_down = False
        self._was_available = False
        self._unavailable_since: float | None = now
        self._last_progress = now
        self._was_busy = False
        self._num_steps_finished: int | None = None

    @property
    def is_available(self) -> bool:
        """A leader answers, it can commit, and it has an executor."""
        return self._unavailable_since is None

    @property
    def is_connected(self) -> bool:
        return self._is_connected

    def unavailable_for(self, now: float) -> float:
        return 0.0 if self._unavailable_since is None else now - self._unavailable_since

    def set_connected(self, is_connected: bool, now: float) -> None:
        self._is_connected = is_connected
        self._num_steps_finished = None
        self._update(now)

    def set_status(
        self,
        *,
        has_executor: bool,
        num_steps_finished: int,
        now: float,
        is_store_down: bool = False,
    ) -> None:
        """What the leader says of itself. Any change of the count of steps is progress."""
        self._has_executor = has_executor
        self._is_store_down = is_store_down
        if num_steps_finished != self._num_steps_finished:
            self._num_steps_finished = num_steps_finished
            self._last_progress = now
        self._update(now)

    def note_progress(self, now: float) -> None:
        self._last_progress = now

    def set_busy(self, is_busy: bool, now: float) -> None:
        """Work waits, or none does; the clock of a stall starts with the first of it."""
        if is_busy and not self._was_busy:
            self._last_progress = now
        self._was_busy = is_busy

    def why_not_ready(self, now: float) -> str | None:
        if not self._was_available or self.unavailable_for(now) > self._stall_s:
            return f"no {self._missing()} for {self.unavailable_for(now):.1f} s"
        if self._was_busy and now - self._last_progress > self._stall_s:
            return f"no step has ended for {now - self._last_progress:.1f} s while requests wait"
        return None

    def _missing(self) -> str:
        if not self._is_connected:
            return "scheduler"
        return "redis" if self._is_store_down else "executor"

    def _update(self, now: float) -> None:
        if self._is_connected and self._has_executor and not self._is_store_down:
            self._unavailable_since = None
            self._was_available = True
        elif self._unavailable_since is None:
            self._unavailable_since = now
