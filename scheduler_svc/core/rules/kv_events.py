"""A record of what enters and leaves the prefix cache, for routers outside (specification 13).

Knows nothing about who reads it. Invariant: decides nothing; the events are in the order in which
things happened, one "stored" for each registration of several blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduler_svc.core.request import Request


@dataclass(slots=True, frozen=True)
class BlocksStored:
    block_hashes: tuple[bytes, ...]
    parent_hash: bytes | None
    token_ids: tuple[int, ...]
    block_size: int
    adapter: str
    cache_salt: str


@dataclass(slots=True, frozen=True)
class BlockRemoved:
    block_hash: bytes


@dataclass(slots=True, frozen=True)
class AllBlocksCleared:
    pass


KVEvent = BlocksStored | BlockRemoved | AllBlocksCleared


class KVEventLog:
    """A `CacheListener` that keeps the events until they are taken."""

    def __init__(self) -> None:
        self._events: list[KVEvent] = []

    def blocks_stored(self, request: Request, first: int, end: int, block_size: int) -> None:
        hashes = request.block_hashes
        self._events.append(
            BlocksStored(
                tuple(hashes[first:end]),
                hashes[first - 1] if first else None,
                tuple(request.all_token_ids[first * block_size : end * block_size]),
                block_size,
                request.submission.adapter,
                request.submission.cache_salt,
            )
        )

    def block_removed(self, block_hash: bytes) -> None:
        self._events.append(BlockRemoved(block_hash))

    def cache_cleared(self) -> None:
        self._events.append(AllBlocksCleared())

    def take(self) -> list[KVEvent]:
        events, self._events = self._events, []
        return events
