"""Where the scheduler's time goes: CPU of the loop's thread by part.

Knows nothing about who shows it. Invariant: sums since the start of this process, of CPU time, so
that a busy machine does not show in them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Timings:
    """Seconds. `commit_s` is what the loop's thread did while a commit was under way."""

    schedule_s: float = 0.0
    update_s: float = 0.0
    commit_s: float = 0.0
    emit_s: float = 0.0
    num_commits: int = 0
    num_tokens: int = 0
    num_output_bytes: int = 0  # of messages to gateways
