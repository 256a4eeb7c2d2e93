"""A waiting request while it is looked at: what is computed already, and what it would get.

Knows nothing about queues. Invariant: nothing in here counts before the request has its blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduler_svc.core.block_pool import KVCacheBlock
from scheduler_svc.core.request import Request


@dataclass(slots=True)
class Candidate:
    """`num_computed_tokens`: its own, the local hit and what comes from elsewhere."""

    request: Request
    was_looked_up: bool
    hits: list[KVCacheBlock]
    num_external_tokens: int
    loads_async: bool
    num_computed_tokens: int
    num_new_tokens: int = 0
    num_pad_drafts: int = 0
