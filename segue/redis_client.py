"""A client for the Redis that a URL names: a server, or whichever one Sentinels call the master.

    redis://:PASSWORD@host:6379/0     rediss://…     unix:///path.sock
    redis+sentinel://:PASSWORD@sentinel-0:26379,sentinel-1:26379/SERVICE?db=0
    rediss+sentinel://…?ssl_ca_certs=/path

The password is the servers'; `sentinel_password` the Sentinels' own. Knows redis-py and addresses;
sends nothing. Invariant: each new connection asks the Sentinels anew, so that after a failover the
next try reaches the new master.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from redis import asyncio as redis_asyncio
from redis.asyncio.sentinel import Sentinel

SCHEMES = ("redis+sentinel", "rediss+sentinel")
DEFAULT_PORT = 26379
TLS_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
OTHER_OPTIONS = ("db", "sentinel_username", "sentinel_password")


def open_redis(url: str, **options: Any) -> Any:
    """A `redis.asyncio.Redis`; connects when it is first used. Raises ValueError for a bad URL."""
    if urlsplit(url).scheme not in SCHEMES:
        return redis_asyncio.Redis.from_url(url, **options)  # pyright: ignore[reportUnknownMemberType]
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    if unknown := query.keys() - {*TLS_OPTIONS, *OTHER_OPTIONS}:
        raise ValueError(f"no option {sorted(unknown)[0]!r} of a Sentinel URL")
    service = parts.path.strip("/")
    if not service or "/" in service:
        raise ValueError("the path of a Sentinel URL is the name of the service, as in /segue")
    login, _, hosts = parts.netloc.rpartition("@")
    username, _, password = login.partition(":")
    tls = _tls(parts.scheme, query)
    sentinels = Sentinel(
        [_address(host) for host in hosts.split(",")],
        sentinel_kwargs={
            "username": query.get("sentinel_username"),
            "password": query.get("sentinel_password"),
            **tls,
            **{name: value for name, value in options.items() if name.startswith("socket_")},
        },
    )
    return sentinels.master_for(  # pyright: ignore[reportUnknownMemberType]
        service,
        username=unquote(username) or None,
        password=unquote(password) or None,
        db=int(query.get("db", 0)),
        **tls,
        **options,
    )


async def close_redis(client: Any) -> None:
    """And the connections to Sentinels."""
    await client.aclose()
    manager = getattr(client.connection_pool, "sentinel_manager", None)
    for sentinel in manager.sentinels if manager is not None else ():
        await sentinel.aclose()


def _address(host: str) -> tuple[str, int]:
    parts = urlsplit(f"//{host}")
    if not parts.hostname:
        raise ValueError(f"{host!r} is not host:port of a Sentinel")
    return parts.hostname, parts.port or DEFAULT_PORT


def _tls(scheme: str, query: dict[str, str]) -> dict[str, Any]:
    if scheme == "redis+sentinel":
        return {}
    return {"ssl": True, **{name: query[name] for name in TLS_OPTIONS if name in query}}
