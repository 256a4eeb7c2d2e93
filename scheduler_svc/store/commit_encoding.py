"""A delta as the operations that `lua/commit.lua` applies, and commit ids as text.

Knows the script's format; knows nothing about connections. Invariant: every operation is one
absolute Redis command, and the same commit always gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import cast

import msgpack  # pyright: ignore[reportMissingTypeStubs]

from scheduler_svc.core.rows import Commit, CommitId, Delta, Key, Table
from scheduler_svc.store.keys import KIND, Kind, StoreKeys

MAX_ARGUMENTS = 4000  # Lua's `unpack` takes just below 8,000 values; even: pairs stay together
MAX_RANK = 2**53  # scores are doubles

Argument = str | bytes | int


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
        """KEYS (meta first), and the msgpack of [groups, arguments], in the order of `Delta`.

        Flat on purpose: unpacking an array for each operation costs Lua as much as applying it.
        """
        operations = _Operations(self._keys, self._namespace)
        operations.add_delta(commit.delta)
        packed = msgpack.packb(  # pyright: ignore
            [operations.groups, operations.arguments], use_bin_type=False
        )
        return operations.keys, cast(bytes, packed)


class _Operations:
    """Collects KEYS, groups and arguments.

    A group is four entries of `groups`: a command, its first key, the number of keys in a row, and
    the number of arguments of each. Lua counts KEYS from 1, and meta is the first.
    """

    def __init__(self, keys: StoreKeys, namespace: str) -> None:
        self.keys = [keys.meta]
        self.groups: list[Argument] = []
        self.arguments: list[Argument] = []
        self._store_keys = keys
        self._namespace = namespace

    def add_delta(self, delta: Delta) -> None:
        for key in delta.dropped:
            self._group("UNLINK", self._name(key), ())
        for key, names in delta.removed_fields.items():
            self._chunks("HDEL", self._name(key, Kind.HASH), names)
        for key, names in delta.removed_ranks.items():
            self._chunks("ZREM", self._name(key, Kind.RANKS), names)
        for key, values in delta.fields.items():
            flat = list(chain.from_iterable(values.items()))
            self._chunks("HSET", self._name(key, Kind.HASH), flat)
        for key, ranks in delta.ranks.items():
            if any(abs(rank) > MAX_RANK for rank in ranks.values()):
                raise ValueError(f"a rank of {key} does not fit a sorted set's score")
            flat = [argument for member, rank in ranks.items() for argument in (rank, member)]
            self._chunks("ZADD", self._name(key, Kind.RANKS), flat)
        self._add_outputs({r: write for r, write in delta.outputs.items() if write[1]})

    def _add_outputs(self, outputs: dict[str, tuple[int, bytes]]) -> None:
        if not outputs:
            return
        self.groups += ["SETRANGE", len(self.keys) + 1, len(outputs), 2]
        prefix = self._name(Key(Table.OUTPUTS), Kind.STRING)
        self.keys += [prefix + request_id for request_id in outputs]
        self.arguments += chain.from_iterable(outputs.values())

    def _name(self, key: Key, kind: Kind | None = None) -> str:
        if kind is not None and KIND[key.table] is not kind:
            raise ValueError(f"{key} is a {KIND[key.table].value}, not a {kind.value}")
        return self._store_keys.row(self._namespace, key)

    def _chunks(self, command: str, name: str, arguments: Sequence[Argument]) -> None:
        for start in range(0, len(arguments), MAX_ARGUMENTS):
            self._group(command, name, arguments[start : start + MAX_ARGUMENTS])

    def _group(self, command: str, name: str, arguments: Sequence[Argument]) -> None:
        self.keys.append(name)
        self.groups += [command, len(self.keys), 1, len(arguments)]
        self.arguments += arguments
