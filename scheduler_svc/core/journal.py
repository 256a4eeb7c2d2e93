"""What changed since the last commit, noted where it is changed.

Knows nothing about rows. Invariant: whoever changes a field that decides anything, of a request or
of a block, notes it here before the next commit is taken.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scheduler_svc.core.request import Request


@dataclass(slots=True)
class Journal:
    """Of one lane: its changed requests by id, its changed blocks by block id."""

    requests: dict[str, Request] = field(default_factory=dict[str, "Request"])
    blocks: set[int] = field(default_factory=set[int])
