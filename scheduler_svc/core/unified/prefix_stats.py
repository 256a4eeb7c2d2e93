"""How much of what was admitted was cached (specification 7.1, statistics).

Knows nothing about blocks. Invariant: counted on admission only, once for each; decides nothing.
"""

from __future__ import annotations

from scheduler_svc.core.request import Request


class PrefixStats:
    """Requests, queried tokens and hit tokens: first admissions, then those after a preemption."""

    def __init__(self) -> None:
        self.counts = [0] * 6

    def add(self, request: Request, num_hit_tokens: int) -> None:
        start = 3 if request.num_preemptions else 0
        self.counts[start] += 1
        self.counts[start + 1] += request.num_tokens
        self.counts[start + 2] += num_hit_tokens

    def take(self) -> list[int]:
        counts, self.counts = self.counts, [0] * 6
        return counts
