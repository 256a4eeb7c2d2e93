"""Which URLs name Sentinels, and what is refused in one line."""

from __future__ import annotations

import pytest

from segue.embedded_redis import without_password
from segue.redis_client import close_redis, open_redis


async def test_a_sentinel_url_names_them_all() -> None:
    client = open_redis(
        "redis+sentinel://user:p%40ss@a:1,b,[::1]:3/segue?db=2&sentinel_password=q",
        socket_timeout=1.5,
    )
    pool = client.connection_pool
    assert pool.service_name == "segue"
    kwargs = [one.connection_pool.connection_kwargs for one in pool.sentinel_manager.sentinels]
    assert [(one["host"], one["port"]) for one in kwargs] == [("a", 1), ("b", 26379), ("::1", 3)]
    assert {(one["password"], one["socket_timeout"]) for one in kwargs} == {("q", 1.5)}
    own = pool.connection_kwargs
    assert (own["username"], own["password"], own["db"]) == ("user", "p@ss", 2)
    await close_redis(client)


@pytest.mark.parametrize(
    "url,reason",
    [
        ("redis+sentinel://a:1", "name of the service"),
        ("redis+sentinel://a:1,/segue", "not host:port"),
        ("redis+sentinel://a:1/segue?shoe=1", "no option 'shoe'"),
        ("rediss+nothing://a:1", "scheme"),
    ],
)
def test_a_url_that_names_nothing_is_refused(url: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        open_redis(url)


def test_no_password_is_shown() -> None:
    url = "redis+sentinel://:secret@a:1,b:2/segue?sentinel_password=hidden&db=1"
    shown = without_password(url)
    assert shown == "redis+sentinel://…@a:1,b:2/segue?sentinel_password=…&db=1"
