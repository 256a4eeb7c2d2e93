"""`segue doctor` as a program, on this machine and against real Redis servers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from segue.model_files.hand import write_hand_model
from tests.redis_process import RedisProcess, redis_binary
from tests.source_tree import ROOT

pytestmark = [pytest.mark.redis, pytest.mark.timeout(120), pytest.mark.slow]


def doctor(*flags: str) -> tuple[int, dict[str, dict[str, str]]]:
    """The exit code, and the last finding of each name."""
    command = [sys.executable, "-m", "segue", "doctor", "--json", "--port", "0", *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return done.returncode, {one["name"]: one for one in json.loads(done.stdout)}


@pytest.fixture
def binary() -> str:
    found = redis_binary()
    if found is None:
        pytest.skip("no redis-server on PATH")
    return found


def test_this_machine_can_serve(tmp_path: Path) -> None:
    write_hand_model(tmp_path / "hand")
    code, found = doctor("--model", str(tmp_path / "hand"))
    assert code == 0, found
    assert set(found) == {
        *("python", "torch", "gpu", "compiler", "redis", "ports", "model", "disk", "clock")
    }
    assert found["redis"]["level"] == "ok"


def test_a_server_that_evicts_is_a_failure(binary: str) -> None:
    server = RedisProcess(binary, "--maxmemory-policy", "allkeys-lru", "--save", "").start()
    try:
        code, found = doctor("--redis-url", server.url)
    finally:
        server.stop()
    assert code == 1
    assert "allkeys-lru" in found["redis"]["text"]


def test_a_server_without_an_aof_is_a_warning_and_its_clock_is_compared(binary: str) -> None:
    server = RedisProcess(binary).start()
    try:
        _, found = doctor("--redis-url", server.url)
    finally:
        server.stop()
    assert found["redis"]["level"] == "warn"
    assert "AOF" in found["redis"]["text"]
    assert "Redis' clock" in found["clock"]["text"]


def test_no_server_is_a_failure(tmp_path: Path) -> None:
    code, found = doctor("--redis-url", f"unix://{tmp_path}/nothing.sock")
    assert (code, found["redis"]["level"]) == (1, "fail")
    assert found["redis"]["advice"]
