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
    """Of one lane: its changed requests by id, its changed blocks by block id.

    A request in `requests` is looked at whole, so to note it there is always right. Two changes are
    noted apart, since nearly all are of these kinds, and cost less to find: those `decoded` have
    progress and output tokens, those `grown` have blocks behind the ones that they had.
    """

    requests: dict[str, Request] = field(default_factory=dict[str, "Request"])
    decoded: dict[str, Request] = field(default_factory=dict[str, "Request"])
    grown: dict[str, Request] = field(default_factory=dict[str, "Request"])
    blocks: set[int] = field(default_factory=set[int])

    @property
    def is_empty(self) -> bool:
        return not (self.decoded or self.requests or self.grown or self.blocks)

    def forget(self, request_id: str) -> None:
        self.requests.pop(request_id, None)
        self.decoded.pop(request_id, None)
        self.grown.pop(request_id, None)

    def clear(self) -> None:
        self.requests.clear()
        self.decoded.clear()
        self.grown.clear()
        self.blocks.clear()
