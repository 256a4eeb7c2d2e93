"""Counts computed (request, position) pairs, and those computed more than once in this process.

Knows nothing about generations: its counts outlive them, since that is what they are to show.
Invariant: positions of a request are computed contiguously, so one high-water mark tells them all.
"""

from __future__ import annotations

# Requests that a lost generation never announced as finished would stay for ever.
MAX_TRACKED_REQUESTS = 100_000


class PositionCounter:
    def __init__(self) -> None:
        self.num_positions_computed = 0
        self.num_positions_recomputed = 0
        self._computed_up_to: dict[str, int] = {}

    def count(self, request_id: str, start: int, end: int) -> None:
        """Positions start..end - 1 were computed for this request."""
        up_to = self._computed_up_to.pop(request_id, 0)
        self.num_positions_computed += end - start
        self.num_positions_recomputed += max(0, min(end, up_to) - start)
        self._computed_up_to[request_id] = max(up_to, end)
        if len(self._computed_up_to) > MAX_TRACKED_REQUESTS:
            oldest = next(iter(self._computed_up_to))
            del self._computed_up_to[oldest]

    def forget(self, request_id: str) -> None:
        self._computed_up_to.pop(request_id, None)
