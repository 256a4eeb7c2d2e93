"""The scheduler's state as rows: what a commit changes (`Delta`) and what it leaves (`Rows`).

Knows nothing about Redis (`store/` maps keys to Redis keys) nor about scheduling (`snapshot.py`
makes rows from objects). Invariant: every operation of a delta is absolute, so applying it twice is
applying it once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeVar

V = TypeVar("V")


class Table(Enum):
    """Every kind of row. The value is the Redis key's stem; docs/state.md describes each."""

    __hash__ = object.__hash__  # by identity: keys are hashed hundreds of times for each commit

    ENGINE = "engine"  # hash: pause state, counters
    SUBMISSIONS = "submissions"  # hash: request id -> Submission bytes
    REQUESTS = "requests"  # hash: request id -> status and progress, as text; the index of all
    OUTPUTS = "outputs"  # string, one for each request: output tokens, int32 little-endian
    LOGPROBS = "logprobs"  # hash, one for each request that asked: output index -> bytes
    FINISHED = "finished"  # sorted set: request id, by the time of its end in unix ms
    UNPLACED = "unplaced"  # sorted set: request id, in order, while there is no lane
    LANES = "lanes"  # hash: executor id -> lane row, as JSON
    LANE_WAITING = "waiting"  # sorted sets, one for each lane: request id by rank
    LANE_HOLDING = "holding"
    LANE_RUNNING = "running"
    LANE_SWAPPED = "swapped"
    LANE_FREE = "free"  # sorted set, one for each lane: free block id by rank
    LANE_BLOCKS = "blocks"  # hash, one for each lane: block id -> ref_cnt, hash, registration
    LANE_TABLES = "tables"  # hash, one for each lane: request id -> block ids, as text
    LANE_STEPS = "steps"  # hash, one for each lane: step id -> the bytes sent, while in flight


class Key(NamedTuple):
    """A table, and whose it is: a lane's or a request's, empty where there is only one."""

    table: Table
    owner: str = ""


class CommitId(NamedTuple):
    """Names one commit of the chain; `seq` grows by one within a leader's life."""

    epoch: int
    leader_id: str
    seq: int


@dataclass(slots=True)
class Delta:
    """What one commit changes. Applied in the order of the fields below."""

    dropped: list[Key] = field(default_factory=list[Key])
    removed_fields: dict[Key, list[str]] = field(default_factory=dict[Key, list[str]])
    removed_ranks: dict[Key, list[str]] = field(default_factory=dict[Key, list[str]])
    fields: dict[Key, dict[str, bytes]] = field(default_factory=dict[Key, dict[str, bytes]])
    ranks: dict[Key, dict[str, int]] = field(default_factory=dict[Key, dict[str, int]])
    outputs: dict[str, tuple[int, bytes]] = field(  # by request id: byte offset, bytes
        default_factory=dict[str, tuple[int, bytes]]
    )

    def is_empty(self) -> bool:
        return not (
            self.dropped
            or self.removed_fields
            or self.removed_ranks
            or self.fields
            or self.ranks
            or self.outputs
        )


@dataclass(slots=True, frozen=True)
class Commit:
    """One link of the chain: the same object is handed to the store until its outcome is known."""

    id: CommitId
    previous: CommitId | None  # None: the first commit of a deployment
    delta: Delta
    now_unix_ms: int


@dataclass(slots=True)
class Rows:
    """A whole state. An empty hash, sorted set or string is the same as none, as in Redis."""

    hashes: dict[Key, dict[str, bytes]] = field(default_factory=dict[Key, dict[str, bytes]])
    ranks: dict[Key, dict[str, int]] = field(default_factory=dict[Key, dict[str, int]])
    strings: dict[Key, bytes] = field(default_factory=dict[Key, bytes])

    def apply(self, delta: Delta) -> None:
        for key in delta.dropped:
            self.hashes.pop(key, None)
            self.ranks.pop(key, None)
            self.strings.pop(key, None)
        _remove(self.hashes, delta.removed_fields)
        _remove(self.ranks, delta.removed_ranks)
        for key, values in delta.fields.items():
            if values:
                self.hashes.setdefault(key, {}).update(values)
        for key, scores in delta.ranks.items():
            if scores:
                self.ranks.setdefault(key, {}).update(scores)
        for request_id, (offset, data) in delta.outputs.items():
            if data:
                key = Key(Table.OUTPUTS, request_id)
                old = self.strings.get(key, b"").ljust(offset, b"\0")
                self.strings[key] = old[:offset] + data + old[offset + len(data) :]


def _remove(tables: dict[Key, dict[str, V]], removals: dict[Key, list[str]]) -> None:
    for key, members in removals.items():
        table = tables.get(key, {})
        for member in members:
            table.pop(member, None)
        if not table:
            tables.pop(key, None)
