"""The state store in Redis or Valkey: verbs are Lua scripts, rows are hashes, sets and strings.

Knows the scripts' arguments and answers; knows nothing about what rows mean. Invariant: a commit is
encoded once, and every try sends the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from scheduler_svc.core.rows import Commit, Key, Rows, Table
from scheduler_svc.store.commit_encoding import CommitEncoder, commit_id_text, parse_commit_id
from scheduler_svc.store.keys import FIRST_NAMESPACE, INDEX, KIND, Kind, StoreKeys
from scheduler_svc.store.redis_connection import Command, RedisConnection, Script
from scheduler_svc.store.server_check import Durability, check_server
from scheduler_svc.store.state_store import (
    SCHEMA_VERSION,
    CommitAnswer,
    LeaseAcquired,
    LeaseCandidate,
    LeaseHeld,
    LoadedState,
    Outcome,
    StateStore,
    StoreSight,
    StoreUnavailable,
    require_readable,
)
from segue.version import OLDEST_STATE_SCHEMA_VERSION

WAIT_MS = 1000  # for a replica's disk; longer is "unknown", and the commit is sent again
KEYS_PER_BATCH = 256
MAX_TRIES_AT_ONCE = 20


def open_store(
    redis_url: str, deployment: str, durability: str = "everysec", config_digest: str = ""
) -> RedisStore:
    """A store that connects when it is first used. `durability`: everysec | always | replicated."""
    level = Durability(durability)
    connection = RedisConnection(redis_url, WAIT_MS if level is Durability.REPLICATED else 0)
    return RedisStore(connection, StoreKeys(deployment), level, config_digest)


class RedisStore(StateStore):
    """One deployment's rows. Used by one task at a time."""

    def __init__(
        self,
        connection: RedisConnection,
        keys: StoreKeys,
        durability: Durability = Durability.EVERYSEC,
        config_digest: str = "",
    ) -> None:
        self._connection = connection
        self._keys = keys
        self._durability = durability
        self._config_digest = config_digest
        self._namespace = FIRST_NAMESPACE
        self._candidate: LeaseCandidate | None = None
        self._encoded: tuple[Commit, list[str], bytes] | None = None
        self._acquire = Script("acquire")
        self._commit = Script("commit")
        self._raise_epoch = Script("raise_epoch")
        self._release = Script("release")

    async def check_server(self) -> list[str]:
        return await check_server(self._connection, self._durability)

    async def look(self) -> StoreSight:
        names = ("scheduler_id", "address", "epoch", "leader_id", "lease_until_ms")
        info, now, meta = await self._connection.batch(
            [("INFO", "server"), ("TIME",), ("HMGET", self._keys.meta, *names)]
        )
        leader = None
        if meta[2] is not None:
            now_ms = int(now[0]) * 1000 + int(now[1]) // 1000
            scheduler_id, address, epoch, leader_id, until_ms = meta
            leader = LeaseHeld(
                scheduler_id=scheduler_id.decode(),
                address=address.decode(),
                epoch=int(epoch),
                leader_id=leader_id.decode(),
                expires_in_ms=max(0, int(until_ms) - now_ms),
            )
        return StoreSight(str(info["run_id"]), int(info["uptime_in_seconds"]) * 1000, leader)

    async def acquire(self, candidate: LeaseCandidate) -> LeaseAcquired | LeaseHeld:
        arguments = (
            candidate.scheduler_id,
            candidate.leader_id,
            candidate.address,
            candidate.lease_ttl_ms,
            candidate.above,
            SCHEMA_VERSION,
            self._namespace,
            OLDEST_STATE_SCHEMA_VERSION,
        )
        answer = await self._connection.run(self._acquire, [self._keys.meta], arguments)
        verdict, *values = [value.decode() for value in answer]
        if verdict == "unreadable":
            require_readable(int(values[0]))
        if verdict == "held":
            scheduler_id, address, epoch, leader_id, expires_in_ms = values
            return LeaseHeld(
                scheduler_id=scheduler_id,
                address=address,
                epoch=int(epoch),
                leader_id=leader_id,
                expires_in_ms=int(expires_in_ms),
            )
        epoch, last_commit, self._namespace = values
        self._candidate = candidate
        return LeaseAcquired(int(epoch), parse_commit_id(last_commit))

    async def raise_epoch(self, epoch: int, leader_id: str, above: int) -> int | None:
        answer = await self._connection.run(
            self._raise_epoch, [self._keys.meta], (epoch, leader_id, above)
        )
        return None if answer is None else int(answer)

    async def commit(self, commit: Commit, lease_ttl_ms: int) -> CommitAnswer:
        keys, operations = self._encode(commit)
        candidate = self._candidate
        is_ours = candidate is not None and candidate.leader_id == commit.id.leader_id
        arguments = (
            commit.id.epoch,
            commit.id.leader_id,
            candidate.scheduler_id if candidate is not None and is_ours else "",
            candidate.address if candidate is not None and is_ours else "",
            commit_id_text(commit.id),
            commit_id_text(commit.previous),
            lease_ttl_ms,
            commit.now_unix_ms,
            self._config_digest,
            self._namespace,
            operations,
            SCHEMA_VERSION,
        )
        answer = await self._connection.run(self._commit, keys, arguments)
        outcome, epoch, leader_id, scheduler_id, address, last = [v.decode() for v in answer]
        return CommitAnswer(
            Outcome(outcome), int(epoch), leader_id, parse_commit_id(last), scheduler_id, address
        )

    async def release(self, epoch: int, leader_id: str) -> None:
        await self._connection.run(self._release, [self._keys.meta], (epoch, leader_id))

    async def close(self) -> None:
        await self._connection.close()

    async def load(self) -> LoadedState:
        raw = await self._connection.call("HGETALL", self._keys.meta)
        meta = {name.decode(): value.decode() for name, value in raw.items()}
        self._namespace = meta.get("namespace", FIRST_NAMESPACE)
        rows = Rows()
        await self._read(rows, [Key(table) for table in Table if table not in INDEX])
        await self._read(rows, list(_owned_keys(rows)))
        return _loaded(meta, rows)

    async def load_at_once(self) -> LoadedState:
        """`load` for one who does not lead: in one transaction, since another commits meanwhile.

        The rows to ask for are those of the requests and lanes that were there a moment ago.
        """
        rows = (await self.load()).rows
        for _ in range(MAX_TRIES_AT_ONCE):
            keys = [*(Key(table) for table in Table if table not in INDEX), *_owned_keys(rows)]
            commands = [("HGETALL", self._keys.meta), *map(self._read_command, keys)]
            raw, *replies = await self._connection.batch_at_once(commands)
            rows = Rows()
            for key, reply in zip(keys, replies, strict=True):
                _put(rows, key, reply)
            if set(_owned_keys(rows)) <= set(keys):
                return _loaded({name.decode(): value.decode() for name, value in raw.items()}, rows)
        raise StoreUnavailable("requests come faster than the state can be read; try again")

    async def _read(self, rows: Rows, keys: list[Key]) -> None:
        for start in range(0, len(keys), KEYS_PER_BATCH):
            chunk = keys[start : start + KEYS_PER_BATCH]
            replies = await self._connection.batch([self._read_command(key) for key in chunk])
            for key, reply in zip(chunk, replies, strict=True):
                _put(rows, key, reply)

    def _read_command(self, key: Key) -> Command:
        name = self._keys.row(self._namespace, key)
        match KIND[key.table]:
            case Kind.HASH:
                return ("HGETALL", name)
            case Kind.RANKS:
                return ("ZRANGE", name, 0, -1, "WITHSCORES")
            case Kind.STRING:
                return ("GET", name)

    def _encode(self, commit: Commit) -> tuple[list[str], bytes]:
        if self._encoded is None or self._encoded[0] is not commit:
            encoder = CommitEncoder(self._keys, self._namespace)
            self._encoded = (commit, *encoder.encode(commit))
        return self._encoded[1], self._encoded[2]


def _loaded(meta: dict[str, str], rows: Rows) -> LoadedState:
    begun, done = meta.get("begun", ""), meta.get("done", "")
    return LoadedState(
        rows=rows,
        last_commit=parse_commit_id(done),
        is_torn=begun != done,
        schema_version=int(meta.get("schema_version", SCHEMA_VERSION)),
        config_digest=meta.get("config_digest", ""),
        now_unix_ms=int(meta.get("now_unix_ms", 0)),
    )


def _owned_keys(rows: Rows) -> Iterable[Key]:
    for table, index in INDEX.items():
        for owner in rows.hashes.get(Key(index), {}):
            yield Key(table, owner)


def _put(rows: Rows, key: Key, reply: Any) -> None:
    if not reply:
        return
    match KIND[key.table]:
        case Kind.HASH:
            rows.hashes[key] = {name.decode(): bytes(value) for name, value in reply.items()}
        case Kind.RANKS:
            members, scores = reply[::2], reply[1::2]
            pairs = zip(members, scores, strict=True)
            rows.ranks[key] = {member.decode(): int(float(score)) for member, score in pairs}
        case Kind.STRING:
            rows.strings[key] = bytes(reply)
