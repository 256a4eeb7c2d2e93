"""`segue state --check` against a real Redis: a state of the simulation, whole and damaged."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from scheduler_svc.check_state import look
from scheduler_svc.core.rows import Rows
from tests.redis_process import RedisProcess, redis_binary, valkey_binary
from tests.source_tree import ROOT
from tests.stored_state import put, simulated_rows

pytestmark = [pytest.mark.redis, pytest.mark.timeout(120), pytest.mark.slow]

STEM = "{segue:default}:n1:"


@pytest.fixture(scope="module")
def rows() -> Rows:
    return simulated_rows()


@pytest.fixture(scope="module")
def server() -> Iterator[RedisProcess]:
    binary = redis_binary() or valkey_binary()
    if binary is None:
        pytest.skip("no Redis server here")
    process = RedisProcess(binary).start()
    yield process
    process.stop()


@pytest.fixture
async def client(server: RedisProcess, rows: Rows) -> Any:
    """Of a server that holds `rows`, as a scheduler has committed them."""
    client: Any = redis.Redis.from_url(server.url, decode_responses=True)
    client.flushall()
    await put(rows, server.url)
    return client


def running_request(client: Any) -> tuple[str, str]:
    """Its lane, and its id."""
    for lane in client.hkeys(f"{STEM}lanes"):
        for request_id in client.zrange(f"{STEM}running:{lane}", 0, -1):
            if client.hget(f"{STEM}tables:{lane}", request_id):
                return lane, request_id
    raise AssertionError("nobody runs")


def block_of(client: Any) -> tuple[str, str]:
    lane, request_id = running_request(client)
    return lane, client.hget(f"{STEM}tables:{lane}", request_id).split()[0]


def lose_a_reference(client: Any) -> str:
    lane, block_id = block_of(client)
    row = client.hget(f"{STEM}blocks:{lane}", block_id)
    client.hset(f"{STEM}blocks:{lane}", block_id, f"7{row[row.index('|') :]}")
    return f"block {block_id} of lane {lane}: 7 references by its row"


def free_a_block_in_use(client: Any) -> str:
    lane, block_id = block_of(client)
    client.zadd(f"{STEM}free:{lane}", {block_id: 1 << 40})
    return f"block {block_id} of lane {lane}: it is in use, and in the free list"


def queue_twice(client: Any) -> str:
    lane, request_id = running_request(client)
    client.zadd(f"{STEM}waiting:{lane}", {request_id: 0})
    return f"request {request_id}: RUNNING, and in waiting of {lane} and running of {lane}"


def lose_from_the_queue(client: Any) -> str:
    lane, request_id = running_request(client)
    client.zrem(f"{STEM}running:{lane}", request_id)
    return f"request {request_id}: RUNNING, and in no queue"


def lose_a_row(client: Any) -> str:
    lane, request_id = running_request(client)
    client.hdel(f"{STEM}requests", request_id)
    return f"request {request_id}: it is in running of {lane}, and has no row"


def move_to_another_lane(client: Any) -> str:
    lane, request_id = running_request(client)
    row = client.hget(f"{STEM}requests", request_id)
    client.hset(f"{STEM}requests", request_id, row.replace(f"|{lane}|", "|elsewhere|", 1))
    return f"request {request_id}: it is of elsewhere, and queued on {lane}"


def lose_a_submission(client: Any) -> str:
    _, request_id = running_request(client)
    client.hdel(f"{STEM}submissions", request_id)
    return f"request {request_id}: it has no submission"


def cut_a_token(client: Any) -> str:
    _, request_id = running_request(client)
    client.append(f"{STEM}outputs:{request_id}", "x")
    return "bytes of output are no whole tokens"


def lose_a_step(client: Any) -> str:
    lane = next(one for one in client.hkeys(f"{STEM}lanes") if client.exists(f"{STEM}steps:{one}"))
    client.delete(f"{STEM}steps:{lane}")
    return "tokens are in flight by its row, 0 by the steps"


def forget_an_end(client: Any) -> str:
    (request_id,) = client.zrange(f"{STEM}finished", 0, 0)
    client.zrem(f"{STEM}finished", request_id)
    return f"request {request_id}: FINISHED"


def spoil_a_row(client: Any) -> str:
    _, request_id = running_request(client)
    client.hset(f"{STEM}requests", request_id, "RUNNING|e0")
    return f"request {request_id}: its row can not be read: 2 columns instead of 18"


def tear(client: Any) -> str:
    client.hset("{segue:default}:meta", "begun", "1:2:A")
    return "a commit was begun and never done"


async def test_a_whole_state_has_no_contradiction(client: Any, server: RedisProcess) -> None:
    seen = await look(server.url, "default")
    assert seen["violations"] == []
    assert min(seen["num_requests"], seen["num_lanes"]) > 0


@pytest.mark.parametrize(
    "damage",
    [
        *(lose_a_reference, free_a_block_in_use, queue_twice, lose_from_the_queue, lose_a_row),
        *(move_to_another_lane, lose_a_submission, cut_a_token, lose_a_step, forget_an_end),
        *(spoil_a_row, tear),
    ],
)
async def test_damage_is_named(
    client: Any, server: RedisProcess, damage: Callable[[Any], str]
) -> None:
    expected = damage(client)
    found = (await look(server.url, "default"))["violations"]
    assert any(expected in line for line in found), found


def state(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "segue", "state", "--check", *flags]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


async def test_the_command_prints_them_and_fails(client: Any, server: RedisProcess) -> None:
    whole = state("--redis-url", server.url)
    assert (whole.returncode, "no contradiction" in whole.stdout) == (0, True), whole
    expected = free_a_block_in_use(client)
    damaged = state("--redis-url", server.url)
    assert (damaged.returncode, damaged.stdout.strip()) == (1, expected)


def test_no_state_is_one_line(server: RedisProcess) -> None:
    done = state("--redis-url", server.url, "--deployment", "nobodys")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "segue state: there is no state of deployment 'nobodys'\n"
