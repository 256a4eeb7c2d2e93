"""`python -m scheduler_svc.check_redis --redis-url URL`: what a scheduler would say of this server.

For `segue doctor`. Knows the store's own check and prints it as one JSON object. Invariant: reads
only; exit code 1, with one line on stderr, where no server answers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Coroutine
from typing import Any

from scheduler_svc.store.redis_connection import RedisConnection
from scheduler_svc.store.server_check import Durability, check_server
from scheduler_svc.store.state_store import StoreError, StoreUnsuitable


async def look(url: str, durability: Durability) -> dict[str, Any]:
    connection = RedisConnection(url)
    try:
        info, now = await connection.batch([("INFO",), ("TIME",)])
        is_valkey = "valkey_version" in info
        seen: dict[str, Any] = {
            "error": "",
            "warnings": [],
            "product": "Valkey" if is_valkey else "Redis",
            "version": str(info["valkey_version" if is_valkey else "redis_version"]),
            "persistence": "AOF" if int(info.get("aof_enabled", 0)) else "no AOF",
            "now_s": int(now[0]) + int(now[1]) / 1e6,
        }
        try:
            seen["warnings"] = await check_server(connection, durability)
        except StoreUnsuitable as error:
            seen["error"] = str(error)
        return seen
    finally:
        await connection.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="scheduler_svc.check_redis")
    parser.add_argument("--redis-url", required=True)
    parser.add_argument("--durability", default="everysec", choices=[d.value for d in Durability])
    args = parser.parse_args()
    return tell(look(args.redis_url, Durability(args.durability)))


def tell(seen: Coroutine[Any, Any, object]) -> int:
    """Prints it as JSON, or what is wrong as one line; the exit code."""
    try:
        print(json.dumps(asyncio.run(seen)))
    except (StoreError, ValueError) as error:
        print(str(error).partition("\n")[0], file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
