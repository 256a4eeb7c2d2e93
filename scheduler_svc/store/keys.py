"""Every key of the store, built in one place, and what each table is.

Knows names only; never parses a key and never scans for one. Invariant: all keys of a deployment
share one hash tag, so they are in one slot of a cluster and one script may touch them all.
`docs/state.md` describes each row.
"""

from __future__ import annotations

import re
from enum import Enum

from scheduler_svc.core.rows import Key, Rows, Table

FIRST_NAMESPACE = "n1"


class Kind(Enum):
    """What Redis keeps a table in."""

    HASH = "hash"
    RANKS = "sorted set"
    STRING = "string"


KIND: dict[Table, Kind] = {
    Table.ENGINE: Kind.HASH,
    Table.SUBMISSIONS: Kind.HASH,
    Table.REQUESTS: Kind.HASH,
    Table.OUTPUTS: Kind.STRING,
    Table.LOGPROBS: Kind.HASH,
    Table.FINISHED: Kind.RANKS,
    Table.UNPLACED: Kind.RANKS,
    Table.LANES: Kind.HASH,
    Table.LANE_WAITING: Kind.RANKS,
    Table.LANE_HOLDING: Kind.RANKS,
    Table.LANE_RUNNING: Kind.RANKS,
    Table.LANE_SWAPPED: Kind.RANKS,
    Table.LANE_FREE: Kind.RANKS,
    Table.LANE_BLOCKS: Kind.HASH,
    Table.LANE_TABLES: Kind.HASH,
    Table.LANE_STEPS: Kind.HASH,
}

# Tables of which there is one per owner, and the hash whose fields are those owners.
INDEX: dict[Table, Table] = {Table.OUTPUTS: Table.REQUESTS, Table.LOGPROBS: Table.REQUESTS} | {
    table: Table.LANES for table in Table if table.name.startswith("LANE_")
}

_DEPLOYMENT = re.compile(r"[A-Za-z0-9._-]+")


class StoreKeys:
    """Builds the keys of one deployment."""

    def __init__(self, deployment: str) -> None:
        if not _DEPLOYMENT.fullmatch(deployment):
            raise ValueError(
                f"deployment name {deployment!r}: letters, digits, '.', '_' and '-' only"
            )
        self._tag = f"{{segue:{deployment}}}"
        self.meta = f"{self._tag}:meta"

    def row(self, namespace: str, key: Key) -> str:
        stem = f"{self._tag}:{namespace}:{key.table.value}"
        return f"{stem}:{key.owner}" if key.table in INDEX else stem


def unlisted(rows: Rows) -> list[Key]:
    """Owned rows whose owner is in no index: `load` does not find them, so they are a leak."""
    every = [*rows.hashes, *rows.ranks, *rows.strings]
    listed = {index: rows.hashes.get(Key(index), {}) for index in set(INDEX.values())}
    return [
        key for key in every if key.table in INDEX and key.owner not in listed[INDEX[key.table]]
    ]
