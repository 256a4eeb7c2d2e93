"""What changed since the last commit, noted where it is changed.

Knows nothing about rows. Invariant: whoever changes a field that decides anything, of a request or
of a block, notes it here before the next commit is taken.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scheduler_svc.core.request import Request


@dataclass(slots=True)
class Journal:
    """Of one lane: its changed requests by id, its changed blocks by block id.

    A request in `requests` is looked at whole, so to note it there is always right. Three changes
    are noted apart, since nearly all are of these kinds, and cost less to find. `decoded`: the one
    token that a running request got from a step of one token. `planned`: who is to get one token
    more from such a step. Who is in both has a token more and stands as it stood; whoever stands
    otherwise is in `requests` too. `grown`: who has blocks behind those that it had.
    """

    requests: dict[str, Request] = field(default_factory=dict[str, "Request"])
    decoded: dict[str, int] = field(default_factory=dict[str, int])
    planned: dict[str, int] = field(default_factory=dict[str, int])
    grown: dict[str, Request] = field(default_factory=dict[str, "Request"])
    blocks: set[int] = field(default_factory=set[int])

    @property
    def is_empty(self) -> bool:
        return not (self.requests or self.decoded or self.planned or self.grown or self.blocks)

    def note_planned(self, counts: dict[str, int], scheduled: Iterable[Request]) -> None:
        """A step's tokens for each request. Who is in a second one is looked at whole."""
        if self.planned:
            self.requests.update(zip(counts, scheduled, strict=True))
        else:
            self.planned = dict(counts)

    def forget(self, request_id: str) -> None:
        self.requests.pop(request_id, None)
        self.decoded.pop(request_id, None)
        self.planned.pop(request_id, None)
        self.grown.pop(request_id, None)

    def clear(self) -> None:
        self.requests.clear()
        self.blocks.clear()
        self.clear_progress()

    def clear_progress(self) -> None:
        self.decoded = {}
        self.planned = {}
        self.grown.clear()
