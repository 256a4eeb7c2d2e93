"""Whether a server can keep what we promise, asked once at start.

Knows configuration names of Redis and Valkey; knows nothing about rows. Invariant: what would let
rows vanish one by one is refused; what only widens the window of loss is a warning.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from scheduler_svc.store.redis_connection import RedisConnection
from scheduler_svc.store.state_store import StoreCorrupt, StoreUnsuitable

LEAST_VERSION = (6, 2)
LEAST_VERSION_WAITAOF = (7, 2)


class Durability(Enum):
    """What an acknowledged commit survives (docs/state.md)."""

    EVERYSEC = "everysec"  # a crash loses up to about two seconds
    ALWAYS = "always"  # the server's disk has it
    REPLICATED = "replicated"  # the disks of the server and of one replica have it


async def check_server(connection: RedisConnection, durability: Durability) -> list[str]:
    """Warnings. Raises `StoreUnsuitable` where the server can not keep the promise."""
    (info,) = await connection.batch([("INFO",)])
    version = _version(info)
    if version < LEAST_VERSION:
        raise StoreUnsuitable(f"redis {info.get('redis_version')}: at least 6.2 is needed")
    if info.get("role", "master") != "master":
        raise StoreUnsuitable("this is a replica: name the master in --redis-url")
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if policy != "noeviction":
        raise StoreUnsuitable(
            f"maxmemory-policy is {policy}: rows would vanish one by one. Set it to noeviction"
        )
    has_aof = bool(int(info.get("aof_enabled", 0)))
    appendfsync = await _appendfsync(connection)
    _check_durability(durability, has_aof, appendfsync, version)
    return _warnings(info, durability, has_aof, appendfsync)


def _check_durability(
    durability: Durability, has_aof: bool, appendfsync: str, version: tuple[int, int]
) -> None:
    if durability is Durability.EVERYSEC:
        return
    if not has_aof:
        raise StoreUnsuitable(f"durability {durability.value} needs `appendonly yes`")
    if durability is Durability.ALWAYS and appendfsync not in ("always", ""):
        raise StoreUnsuitable(f"durability always, and appendfsync is {appendfsync}")
    if durability is Durability.REPLICATED and version < LEAST_VERSION_WAITAOF:
        raise StoreUnsuitable("durability replicated needs WAITAOF: redis 7.2 or valkey")


def _warnings(
    info: dict[str, Any], durability: Durability, has_aof: bool, appendfsync: str
) -> list[str]:
    warnings: list[str] = []
    if not has_aof:
        warnings.append("redis has no AOF: a restart loses what came after its last snapshot")
    elif appendfsync == "no":
        warnings.append("appendfsync is no: a crash may lose half a minute")
    elif not appendfsync:
        warnings.append("redis does not show appendfsync: what a crash may lose is not known")
    if durability is Durability.REPLICATED and int(info.get("connected_slaves", 0)) < 1:
        warnings.append("no replica is connected: nothing will be committed until one is")
    return warnings


def _version(info: dict[str, Any]) -> tuple[int, int]:
    """Valkey names the version of Redis that it can stand for in `redis_version`."""
    major, minor = str(info.get("redis_version", "0.0")).split(".")[:2]
    return int(major), int(minor)


async def _appendfsync(connection: RedisConnection) -> str:
    """Empty where the server does not show its configuration."""
    try:
        reply = await connection.call("CONFIG", "GET", "appendfsync")
    except (StoreCorrupt, StoreUnsuitable):
        return ""
    if isinstance(reply, dict):
        return "".join(_text(value) for value in reply.values())  # pyright: ignore
    return _text(reply[1]) if len(reply) > 1 else ""


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
