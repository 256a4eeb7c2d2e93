"""The server that `serve` starts: found, checked, durable, and never shared by mistake."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from segue import embedded_redis
from segue.embedded_redis import RedisUnusable, find_redis, inspect
from segue.state_identity import (
    StateIdentity,
    StateMismatch,
    claim_state,
    forget_state,
    require_sole_state,
)
from tests.redis_process import RedisProcess, redis_binary, valkey_binary

pytestmark = pytest.mark.redis

IDENTITY = StateIdentity("a" * 64, 16, 1)


@pytest.fixture(params=["redis", "valkey"])
def binary(request: pytest.FixtureRequest) -> Path:
    found = redis_binary() if request.param == "redis" else valkey_binary()
    if found is None:
        pytest.skip(f"no {request.param} server here")
    return Path(found)


@pytest.fixture
def started(binary: Path, tmp_path: Path, free_port: int) -> Iterator[tuple[str, Path]]:
    command = inspect(binary).command(tmp_path, free_port)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    yield f"redis://127.0.0.1:{free_port}/0", tmp_path
    process.kill()
    process.wait()


async def wait_until_it_answers(url: str) -> None:
    while not await embedded_redis.answers(url):
        pass


def fake_server(directory: Path, version_line: str) -> Path:
    path = directory / "redis-server"
    path.write_text(f"#!/bin/sh\necho '{version_line}'\n")
    path.chmod(0o755)
    return path


async def test_it_writes_every_command_to_a_file_and_evicts_nothing(
    started: tuple[str, Path],
) -> None:
    url, directory = started
    await wait_until_it_answers(url)
    client = embedded_redis.connect(url)
    config = await client.config_get("*")
    await client.aclose()
    assert config["appendonly"] == "yes"
    assert config["appendfsync"] == "everysec"
    assert config["maxmemory-policy"] == "noeviction"
    assert config["bind"] == "127.0.0.1"
    assert os.path.samefile(config["dir"] or "", directory)


async def test_nobody_answers_at_a_free_port(free_port: int) -> None:
    assert not await embedded_redis.answers(f"redis://127.0.0.1:{free_port}/0")


def test_one_on_path_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fake_server(tmp_path, "Redis server v=7.0.15 sha=0")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert (find_redis().path, find_redis().version) == (path, (7, 0, 15))


def test_without_one_on_path_the_packaged_one_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A laptop with nothing installed serves all the same."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_redis().product == "Valkey"


def test_an_old_one_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_server(tmp_path, "Redis server v=5.0.7 sha=0")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(RedisUnusable, match=r"5\.0\.7 .* is too old: 6\.2") as refused:
        find_redis()
    assert "\n" not in str(refused.value)


async def answer_as_redis_5(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """It knows INFO, and nothing that came later: neither HELLO nor CLIENT SETINFO."""
    info = b"# Server\r\nredis_version:5.0.7\r\n"
    while head := await reader.readline():
        words: list[bytes] = []
        for _ in range(int(head[1:])):
            length = int((await reader.readline())[1:])
            words.append((await reader.readexactly(length + 2))[:-2])
        known = words[0].upper() == b"INFO"
        writer.write(b"$%d\r\n%s\r\n" % (len(info), info) if known else b"-ERR unknown command\r\n")
    writer.close()


async def test_an_old_one_by_its_url_is_refused_in_one_line() -> None:
    """Its version is the reason, and not that it says no to a newer protocol."""
    async with await asyncio.start_server(answer_as_redis_5, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(RedisUnusable, match=r"Redis 5\.0\.7 at .* is too old: 6\.2") as refused:
            await embedded_redis.require(f"redis://127.0.0.1:{port}/0")
    assert "\n" not in str(refused.value)


async def test_a_wrong_password_is_said_and_not_shown(
    redis_server: RedisProcess, free_port: int
) -> None:
    url = redis_server.url.replace("://", "://someone:secret@")
    with pytest.raises(RedisUnusable, match=r"no Redis answers at .*…@.*: .*password") as said:
        await embedded_redis.require(url)
    assert "secret" not in str(said.value)
    with pytest.raises(RedisUnusable, match="no Redis answers"):
        await embedded_redis.require(f"redis://127.0.0.1:{free_port}/0")
    await embedded_redis.require(redis_server.url)


def test_what_is_no_server_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RedisUnusable, match="is not a Redis server"):
        inspect(fake_server(tmp_path, "hello"))


def test_a_password_is_never_shown() -> None:
    shown = embedded_redis.without_password("redis://me:secret@host:1/0")
    assert shown == "redis://…@host:1/0"
    assert embedded_redis.without_password("redis://host:1/0") == "redis://host:1/0"


async def test_a_state_is_claimed_once_and_known_again(redis_server: RedisProcess) -> None:
    await claim_state(redis_server.url, "d", IDENTITY)
    await claim_state(redis_server.url, "d", IDENTITY)


@pytest.mark.parametrize(
    ("other", "line"),
    [
        (StateIdentity("b" * 64, 16, 1), "another model (aaaaaaaaaaaa, now bbbbbbbbbbbb)"),
        (StateIdentity("a" * 64, 32, 1), "another block size (16, now 32)"),
        (StateIdentity("a" * 64, 16, 1, "int8"), "another quantization (none, now int8)"),
    ],
)
async def test_another_identity_is_refused_until_it_is_forgotten(
    redis_server: RedisProcess, other: StateIdentity, line: str
) -> None:
    await claim_state(redis_server.url, "d", IDENTITY)
    with pytest.raises(StateMismatch) as refused:
        await claim_state(redis_server.url, "d", other)
    assert line in str(refused.value)
    assert "--fresh" in str(refused.value)
    await forget_state(redis_server.url, "d")
    await claim_state(redis_server.url, "d", other)


async def test_a_state_directory_holds_one_deployment(redis_server: RedisProcess) -> None:
    """A model of another name would start beside it, and leave its requests where nobody looks."""
    await claim_state(redis_server.url, "first", IDENTITY)
    await require_sole_state(redis_server.url, "first")
    with pytest.raises(StateMismatch, match=r"is of deployment first, now second; --deployment fi"):
        await require_sole_state(redis_server.url, "second")
    await forget_state(redis_server.url, "first")
    await require_sole_state(redis_server.url, "second")


async def test_a_state_from_before_quantization_is_of_unquantised_weights(
    redis_server: RedisProcess,
) -> None:
    """Going on with other weights would change the texts that are under way."""
    await claim_state(redis_server.url, "d", IDENTITY)
    client = embedded_redis.connect(redis_server.url)
    await client.hdel("{segue:d}:identity", "quantization")  # pyright: ignore[reportGeneralTypeIssues]
    await client.aclose()
    with pytest.raises(StateMismatch, match=r"another quantization \(none, now q4_1\)"):
        await claim_state(redis_server.url, "d", StateIdentity("a" * 64, 16, 1, "q4_1"))
    await claim_state(redis_server.url, "d", IDENTITY)


async def test_an_older_schema_is_claimed_and_a_newer_one_refused(
    redis_server: RedisProcess,
) -> None:
    await claim_state(redis_server.url, "d", StateIdentity("a" * 64, 16, 1))
    await claim_state(redis_server.url, "d", StateIdentity("a" * 64, 16, 2))
    with pytest.raises(StateMismatch, match=r"another schema version \(2, now 1\)"):
        await claim_state(redis_server.url, "d", StateIdentity("a" * 64, 16, 1))


async def test_the_store_s_own_schema_version_counts(redis_server: RedisProcess) -> None:
    client = embedded_redis.connect(redis_server.url)
    await client.hset("{segue:d}:meta", "schema_version", "7")  # pyright: ignore[reportGeneralTypeIssues]
    await client.aclose()
    with pytest.raises(StateMismatch, match="another schema version"):
        await claim_state(redis_server.url, "d", IDENTITY)


async def test_forgetting_leaves_other_deployments_alone(redis_server: RedisProcess) -> None:
    await claim_state(redis_server.url, "d", IDENTITY)
    await claim_state(redis_server.url, "e", IDENTITY)
    await forget_state(redis_server.url, "d")
    client = embedded_redis.connect(redis_server.url)
    keys = await client.keys("*")
    await client.aclose()
    assert keys == [b"{segue:e}:identity"]
