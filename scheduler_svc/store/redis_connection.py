"""Commands and scripts to one Redis, with every failure sorted into ours.

Knows redis-py and error texts; knows nothing about rows or leases. Invariant: nothing is sent twice
by itself. What may or may not have happened is `StoreUnavailable`, and the caller repeats.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import hiredis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    NoPermissionError,
    NoScriptError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from scheduler_svc.store.state_store import (
    StoreCorrupt,
    StoreError,
    StoreUnavailable,
    StoreUnsuitable,
)
from segue.redis_client import close_redis, open_redis

SOCKET_TIMEOUT_S = 2.0
LUA_DIRECTORY = Path(__file__).parent / "lua"

# Answers that say "not now". Searched anywhere: Redis 6.2 wraps what a script has met.
TRANSIENT = re.compile(
    r"\b(LOADING|READONLY|TRYAGAIN|ASK|MOVED|MASTERDOWN|CLUSTERDOWN|BUSY|OOM|MISCONF|NOREPLICAS)\b"
)

Command = Sequence[str | bytes | int]

# The stub of hiredis says "a tuple of one".
_pack = cast(Callable[[tuple[str | bytes | int, ...]], bytes], hiredis.pack_command)  # pyright: ignore


class Script:
    """A Lua file and its digest."""

    def __init__(self, verb: str) -> None:
        self.text = (LUA_DIRECTORY / f"{verb}.lua").read_text(encoding="utf-8")
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


class RedisConnection:
    """A pool of connections. `wait_ms` > 0: every script waits for one replica's disk, and ours."""

    def __init__(self, url: str, wait_ms: int = 0) -> None:
        self._wait_ms = wait_ms
        self._client: Any = open_redis(
            url,
            protocol=2,
            retry=Retry(NoBackoff(), 0),
            socket_connect_timeout=SOCKET_TIMEOUT_S,
            socket_timeout=SOCKET_TIMEOUT_S + wait_ms / 1000,
        )

    async def call(self, *command: str | bytes | int) -> Any:
        try:
            return await self._client.execute_command(*command)
        except (RedisError, OSError) as error:
            raise _sorted(error) from error

    async def batch(self, commands: Sequence[Command]) -> list[Any]:
        """All commands in one round trip; not atomic. The first error is raised."""
        return await self._checked_replies(commands, is_atomic=False)

    async def batch_at_once(self, commands: Sequence[Command]) -> list[Any]:
        """As `batch`, and nobody's command comes between two of them."""
        return await self._checked_replies(commands, is_atomic=True)

    async def _checked_replies(self, commands: Sequence[Command], *, is_atomic: bool) -> list[Any]:
        replies = await self._replies(commands, is_atomic=is_atomic)
        for reply in replies:
            if isinstance(reply, RedisError):
                raise await self._failed(reply) from reply
        return replies

    async def run(self, script: Script, keys: Sequence[str], arguments: Command) -> Any:
        """Run a script by its digest, or by its text where the server does not know it."""
        tail = (len(keys), *keys, *arguments)
        replies = await self._exchange(("EVALSHA", script.sha, *tail))
        if isinstance(replies[0], NoScriptError):
            replies = await self._exchange(("EVAL", script.text, *tail))
        for reply in replies:
            if isinstance(reply, RedisError):
                raise await self._failed(reply) from reply
        if self._wait_ms and min(int(count) for count in replies[1]) < 1:
            raise StoreUnavailable(f"not yet on disk here and at one replica: WAITAOF {replies[1]}")
        return replies[0]

    async def close(self) -> None:
        await close_redis(self._client)

    async def _exchange(self, command: Command) -> list[Any]:
        """One command, and the WAITAOF behind it, packed in C: redis-py's asyncio connections pack
        in Python, which costs 0.3 ms for a commit of 256 requests."""
        commands = [command, ("WAITAOF", 1, 1, self._wait_ms)] if self._wait_ms else [command]
        packed = b"".join(_pack(tuple(each)) for each in commands)
        pool = self._client.connection_pool
        try:
            connection = await pool.get_connection()
            try:
                await connection.send_packed_command(packed, check_health=False)
                return [await _reply(connection) for _ in commands]
            except BaseException:
                # A reply may still be on its way: nobody may take it for the next one's.
                await connection.disconnect(nowait=True)
                raise
            finally:
                await pool.release(connection)
        except (RedisError, OSError) as error:
            raise _sorted(error) from error

    async def _failed(self, error: RedisError) -> StoreError:
        failure = _sorted(error)
        if isinstance(failure, StoreUnavailable):
            # The next try looks the address up again: the master may be another machine by now.
            await self._client.connection_pool.disconnect(inuse_connections=False)
        return failure

    async def _replies(self, commands: Sequence[Command], *, is_atomic: bool) -> list[Any]:
        try:
            async with self._client.pipeline(transaction=is_atomic) as pipeline:
                for command in commands:
                    pipeline.execute_command(*command)
                return await pipeline.execute(raise_on_error=False)
        except (RedisError, OSError) as error:
            raise _sorted(error) from error


async def _reply(connection: Any) -> Any:
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error


def _sorted(error: Exception) -> StoreError:
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, AuthenticationError | NoPermissionError):
        return StoreUnsuitable(text)
    if isinstance(error, RedisConnectionError | RedisTimeoutError | OSError):
        return StoreUnavailable(text)
    if not isinstance(error, ResponseError) or TRANSIENT.search(f"{text} {_code(error)}"):
        return StoreUnavailable(text)
    return StoreCorrupt(text)


def _code(error: ResponseError) -> str:
    """redis-py cuts the code off the text of the errors that it has a class for."""
    name = type(error).__name__.removesuffix("Error")
    return {"OutOfMemory": "OOM"}.get(name, name.upper())
