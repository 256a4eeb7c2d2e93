"""The rows of one deployment as Redis has them, for people who look.

Knows the names and texts of docs/state.md; imports no scheduler and writes nothing. Invariant:
shows what is stored, in the order in which it is stored; a text that it does not understand is
shown as it stands.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, cast

from redis.exceptions import RedisError

from segue.embedded_redis import RedisUnusable, connect, without_password
from segue.redis_client import close_redis

QUEUES = ("running", "waiting", "holding", "swapped")
TOKEN_BYTES = 4
REQUEST_COLUMNS = (
    *("status", "lane", "owner", "num_uncomputed_tokens", "num_in_flight_tokens"),
    *("num_output_placeholders", "num_stale_output_tokens", "drop_stale_output"),
    *("is_prefill_chunk", "num_preemptions", "num_cached_tokens", "next_decode_eligible_step"),
    *("num_lane_losses", "is_deferred", "finished_at_ms", "spec_token_ids", "extra", "finish"),
)
JsonObject = dict[str, Any]


@dataclass(slots=True)
class StoredState:
    """Text as it is stored, by name."""

    meta: dict[str, str]
    engine: dict[str, str]
    requests: dict[str, JsonObject]  # id -> the row's columns, and num_output_tokens
    lanes: dict[str, JsonObject]  # id -> the row, and its queues, tables, blocks and steps
    unplaced: list[str]
    finished: list[str]


class StateReader:
    """Reads with the commands that `redis-cli` has; not atomic, as a look does not have to be."""

    def __init__(self, url: str, deployment: str) -> None:
        self._client: Any = connect(url)
        self._tag = f"{{segue:{deployment}}}"
        self._url = without_password(url)
        self._deployment = deployment

    async def read(self) -> StoredState:
        try:
            return await self._read()
        except (RedisError, OSError) as error:
            raise RedisUnusable(f"{self._url}: {error}") from error
        finally:
            await close_redis(self._client)

    async def _read(self) -> StoredState:
        meta = await self._hash(f"{self._tag}:meta")
        if not meta:
            raise RedisUnusable(f"{self._url} holds no state of deployment {self._deployment!r}")
        self._stem = f"{self._tag}:{meta.get('namespace', 'n1')}"
        requests: dict[str, JsonObject] = {}
        for request_id, row in (await self._hash(f"{self._stem}:requests")).items():
            num_bytes = await self._client.strlen(f"{self._stem}:outputs:{request_id}")
            requests[request_id] = request_columns(row) | {
                "num_output_tokens": num_bytes // TOKEN_BYTES
            }
        lanes: dict[str, JsonObject] = {}
        for executor_id, row in (await self._hash(f"{self._stem}:lanes")).items():
            lanes[executor_id] = await self._lane(executor_id, row)
        return StoredState(
            meta=meta,
            engine=await self._hash(f"{self._stem}:engine"),
            requests=requests,
            lanes=lanes,
            unplaced=await self._members("unplaced"),
            finished=await self._members("finished"),
        )

    async def _lane(self, executor_id: str, row: str) -> JsonObject:
        lane = _json_object(row)
        for queue in QUEUES:
            lane[queue] = await self._members(f"{queue}:{executor_id}")
        tables = await self._hash(f"{self._stem}:tables:{executor_id}")
        lane["tables"] = {name: text.split() for name, text in tables.items()}
        blocks = await self._hash(f"{self._stem}:blocks:{executor_id}")
        lane["blocks"] = {block_id: block_columns(text) for block_id, text in blocks.items()}
        lane["free"] = await self._members(f"free:{executor_id}")
        steps = await self._client.hkeys(f"{self._stem}:steps:{executor_id}")
        lane["steps"] = sorted(int(step_id) for step_id in steps)
        return lane

    async def _hash(self, key: str) -> dict[str, str]:
        raw = cast("dict[bytes, bytes]", await self._client.hgetall(key))
        return {name.decode(): value.decode(errors="replace") for name, value in raw.items()}

    async def _members(self, name: str) -> list[str]:
        """Of a sorted set, lowest rank first."""
        raw = cast("list[bytes]", await self._client.zrange(f"{self._stem}:{name}", 0, -1))
        return [member.decode() for member in raw]


def request_columns(row: str) -> JsonObject:
    """The columns of a row of `requests`; the last may hold the separator."""
    values = row.split("|", len(REQUEST_COLUMNS) - 1)
    if len(values) != len(REQUEST_COLUMNS):
        return {"row": row}
    return dict(zip(REQUEST_COLUMNS, values, strict=True))


def block_columns(row: str) -> JsonObject:
    values = row.split("|")
    if len(values) != 3:
        return {"row": row}
    return dict(zip(("ref_cnt", "registration", "hash"), values, strict=True))


def _json_object(text: str) -> JsonObject:
    try:
        content: object = json.loads(text)
    except ValueError:
        return {"row": text}
    return cast(JsonObject, content) if isinstance(content, dict) else {"row": text}
