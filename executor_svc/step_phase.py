"""A part of a step, as it was measured: what it is called, and when it ran.

Knows nothing else. Invariant: times are time.monotonic_ns() of this process.
"""

from __future__ import annotations

from dataclasses import dataclass

SWAP, DRAFT = "swap", "draft"  # only where there is any of it
PREPARE, FORWARD, SAMPLE = "prepare_inputs", "forward", "sample"


@dataclass(slots=True, frozen=True)
class StepPhase:
    name: str
    started_ns: int
    ended_ns: int
