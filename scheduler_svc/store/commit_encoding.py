"""A delta as the operations that `lua/commit.lua` applies, and commit ids as text.

Knows the script's format; knows nothing about connections. Invariant: every operation is one
absolute Redis command, and the same commit always gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

import msgpack  # pyright: ignore[reportMissingTypeStubs]

from scheduler_svc.core.rows import Commit, CommitId, Delta, Key
from scheduler_svc.store.keys import KIND, Kind, StoreKeys

MAX_ARGUMENTS = 4000  # Lua's `unpack` takes just below 8,000 values; even: pairs stay together
MAX_RANK = 2**53  # scores are doubles

Argument = str | bytes | int
Operation = list[Argument]


def commit_id_text(commit_id: CommitId | None) -> str:
    if commit_id is None:
        return ""
    return f"{commit_id.epoch}:{commit_id.seq}:{commit_id.leader_id}"


def parse_commit_id(text: str) -> CommitId | None:
    if not text:
        return None
    epoch, seq, leader_id = text.split(":", 2)
    return CommitId(int(epoch), leader_id, int(seq))


class CommitEncoder:
    """Turns commits of one deployment and namespace into KEYS and packed operations."""

    def __init__(self, keys: StoreKeys, namespace: str) -> None:
        self._keys = keys
        self._namespace = namespace

    def encode(self, commit: Commit) -> tuple[list[str], bytes]:
        """KEYS (meta first) and the msgpack of all operations, in the order of `Delta`."""
        numbering = _KeyNumbering(self._keys, self._namespace)
        operations = _operations(commit.delta, numbering)
        packed = cast(bytes, msgpack.packb(operations, use_bin_type=False))  # pyright: ignore
        return numbering.keys, packed


class _KeyNumbering:
    """Gives each row's key its index in KEYS (Lua counts from 1, and meta is the first)."""

    def __init__(self, keys: StoreKeys, namespace: str) -> None:
        self.keys = [keys.meta]
        self._store_keys = keys
        self._namespace = namespace
        self._numbers: dict[Key, int] = {}

    def number(self, key: Key, kind: Kind | None = None) -> int:
        if kind is not None and KIND[key.table] is not kind:
            raise ValueError(f"{key} is a {KIND[key.table].value}, not a {kind.value}")
        number = self._numbers.get(key)
        if number is None:
            self.keys.append(self._store_keys.row(self._namespace, key))
            number = self._numbers[key] = len(self.keys)
        return number


def _operations(delta: Delta, numbering: _KeyNumbering) -> list[Operation]:
    operations: list[Operation] = [["UNLINK", numbering.number(key), 0] for key in delta.dropped]
    for key, names in delta.removed_fields.items():
        operations += _chunks("HDEL", numbering.number(key, Kind.HASH), names)
    for key, names in delta.removed_ranks.items():
        operations += _chunks("ZREM", numbering.number(key, Kind.RANKS), names)
    for key, values in delta.fields.items():
        flat = [argument for pair in values.items() for argument in pair]
        operations += _chunks("HSET", numbering.number(key, Kind.HASH), flat)
    for key, ranks in delta.ranks.items():
        if any(abs(rank) > MAX_RANK for rank in ranks.values()):
            raise ValueError(f"a rank of {key} does not fit a sorted set's score")
        flat = [argument for member, rank in ranks.items() for argument in (rank, member)]
        operations += _chunks("ZADD", numbering.number(key, Kind.RANKS), flat)
    for key, (offset, data) in delta.writes.items():
        if data:
            operations.append(["SETRANGE", numbering.number(key, Kind.STRING), offset, data])
    return operations


def _chunks(command: str, number: int, arguments: Sequence[Argument]) -> Iterable[Operation]:
    for start in range(0, len(arguments), MAX_ARGUMENTS):
        yield [command, number, *arguments[start : start + MAX_ARGUMENTS]]
