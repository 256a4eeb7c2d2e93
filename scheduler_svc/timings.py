"""Where the scheduler's time goes: CPU of the loop's thread by part, and how long commits take.

Knows nothing about who shows it. Invariant: sums since the start of this process; the parts are CPU
time, so that a busy machine does not show in them; a commit's duration is time that passed.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

COMMIT_BUCKETS_S = (
    *(0.0002, 0.0003, 0.0004, 0.0005, 0.0006, 0.0008, 0.001, 0.0012, 0.0015, 0.002),
    *(0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0),
)


@dataclass(slots=True)
class Timings:
    """Seconds. `commit_s` is what the loop's thread did while a commit was under way."""

    schedule_s: float = 0.0
    update_s: float = 0.0
    commit_s: float = 0.0
    emit_s: float = 0.0
    num_commits: int = 0
    num_tokens: int = 0
    commit_duration_s: float = 0.0
    commit_buckets: list[int] = field(default_factory=lambda: [0] * (len(COMMIT_BUCKETS_S) + 1))

    def note_commit(self, duration_s: float) -> None:
        self.num_commits += 1
        self.commit_duration_s += duration_s
        self.commit_buckets[bisect_left(COMMIT_BUCKETS_S, duration_s)] += 1

    def commit_histogram(self) -> list[tuple[str, float]]:
        """(upper bound, number of commits up to it), as Prometheus has it."""
        bounds = [*map(str, COMMIT_BUCKETS_S), "+Inf"]
        counts = list(self.commit_buckets)
        return [(bound, sum(counts[: i + 1])) for i, bound in enumerate(bounds)]
