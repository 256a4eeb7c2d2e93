"""State of another schema version: an older one is read, a newer one refused with nothing changed.

Schema 1 wrote the tokens that are computed where schema 2 writes those that are not.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from array import array
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis

from scheduler_svc.check_state import look
from scheduler_svc.core.rows import Key, Rows, Table
from scheduler_svc.store.state_store import SCHEMA_VERSION
from segue.wire import WireCodec
from tests.redis_process import RedisProcess, redis_binary, valkey_binary
from tests.source_tree import ROOT
from tests.stored_state import put, simulated_rows

pytestmark = [pytest.mark.redis, pytest.mark.timeout(120), pytest.mark.slow]

META = "{segue:default}:meta"
REQUESTS = "{segue:default}:n1:requests"


@pytest.fixture(scope="module")
def rows() -> Rows:
    return simulated_rows()


@pytest.fixture
def server() -> Iterator[RedisProcess]:
    binary = redis_binary() or valkey_binary()
    if binary is None:
        pytest.skip("no Redis server here")
    process = RedisProcess(binary).start()
    yield process
    process.stop()


@asynccontextmanager
async def scheduler(redis_url: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "scheduler_svc", "--listen", "127.0.0.1:0"),
        *("--redis-url", redis_url, "--scheduler-id", "s0", "--no-has-peers"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def lines_until(process: asyncio.subprocess.Process, text: str) -> str:
    """All that it says until a line with `text`, or its end."""
    assert process.stderr is not None
    said = ""
    while line := (await process.stderr.readline()).decode():
        said += line
        if text in line:
            return said
    raise AssertionError(said)


def as_schema_1(rows: Rows) -> Rows:
    """Column 4 as it was then: tokens that are computed, or planned."""
    codec = WireCodec()
    old = Rows(hashes=dict(rows.hashes), ranks=rows.ranks, strings=rows.strings)
    requests = dict(rows.hashes[Key(Table.REQUESTS)])
    for request_id, row in requests.items():
        columns = row.decode().split("|")
        submission = codec.decode_submission(rows.hashes[Key(Table.SUBMISSIONS)][request_id])
        output = array("i", rows.strings.get(Key(Table.OUTPUTS, request_id), b""))
        known = len(submission.prompt_token_ids) + len(output) + int(columns[5])
        columns[3] = str(known - int(columns[3]))
        requests[request_id] = "|".join(columns).encode()
    old.hashes[Key(Table.REQUESTS)] = requests
    assert old.hashes != rows.hashes
    return old


async def test_an_older_state_is_read_and_written_anew(server: RedisProcess, rows: Rows) -> None:
    await put(as_schema_1(rows), server.url, lease_ttl_ms=1)
    client: Any = redis.Redis.from_url(server.url, decode_responses=True)
    client.hset(META, "schema_version", 1)
    before = {name: row.split("|") for name, row in client.hgetall(REQUESTS).items()}
    outputs = {name: client.strlen(f"{{segue:default}}:n1:outputs:{name}") for name in before}
    async with scheduler(server.url) as process:
        said = await lines_until(process, "leads: epoch")
        assert "schema version 1" in said
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    assert client.hget(META, "schema_version") == str(SCHEMA_VERSION)
    assert (await look(server.url, "default"))["violations"] == []
    after = {name: row.split("|") for name, row in client.hgetall(REQUESTS).items()}
    unfinished = {name for name, row in before.items() if not row[0].startswith("FINISHED")}
    assert len(unfinished) > 1
    assert after.keys() >= unfinished
    for name in unfinished:
        assert after[name][0] in ("WAITING", "PREEMPTED")
        length = client.strlen(f"{{segue:default}}:n1:outputs:{name}")
        assert length == outputs[name], "its output stays"


async def test_a_newer_state_is_refused_and_left_alone(server: RedisProcess, rows: Rows) -> None:
    await put(rows, server.url, lease_ttl_ms=1)
    client: Any = redis.Redis.from_url(server.url, decode_responses=True)
    client.hset(META, "schema_version", SCHEMA_VERSION + 1)
    before = client.hgetall(META)
    async with scheduler(server.url) as process:
        said = await lines_until(process, "schema version")
        assert await process.wait() == 1
    assert f"schema version {SCHEMA_VERSION + 1}" in said
    assert "start a newer scheduler" in said
    assert client.hgetall(META) == before
