"""`segue ctl set` on a running deployment whose scheduler is killed after it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.served import Served, wait_until


@pytest.fixture(scope="module")
def served(hand_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    flags = ["--max-num-seqs", "8", "--max-num-batched-tokens", "64"]
    running = Served(hand_model, tmp_path_factory.mktemp("serve") / "state", flags)
    yield running
    running.stop()


def ctl(served: Served, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "segue", "ctl", *arguments]
    command += ["--state-dir", str(served.state_dir)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def row(served: Served, name: str) -> list[str]:
    """Of `segue ctl config`, once somebody leads."""

    def answered() -> str:
        return ctl(served, "config").stdout

    lines = wait_until(answered, "a scheduler answers").splitlines()
    return next(line.split() for line in lines if line.startswith(name))


def test_a_successor_of_a_killed_scheduler_keeps_what_was_set(served: Served) -> None:
    done = ctl(served, "set", "max-num-seqs=1", "log_steps=true")
    assert done.returncode == 0, done.stderr
    served.wait_restarted("scheduler-0", served.kill("scheduler-0"))
    assert row(served, "max_num_seqs") == ["max_num_seqs", "1", "8"]
    body = {"model": served.model, "prompt": "abc", "max_tokens": 12, "ignore_eos": True}

    def ask(_: int) -> int:
        answer = httpx.post(f"{served.url}/v1/completions", json=body, timeout=60)
        return answer.json()["usage"]["completion_tokens"]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, range(4))) == [12] * 4
    running = {int(n) for n in re.findall(r" step \d+ .* running (\d+)", served.log())}
    assert running
    assert max(running) == 1


def test_the_only_executor_is_not_drained_by_mistake(served: Served) -> None:
    done = ctl(served, "drain", "e0")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("segue ctl: no executor but e0 is active")
    assert ctl(served, "drain", "e0", "--force").returncode == 0
    served.wait_restarted("executor-0", served.kill("executor-0"))
    body = {"model": served.model, "prompt": "abc", "max_tokens": 1}
    assert httpx.post(f"{served.url}/v1/completions", json=body, timeout=60).is_success


def test_a_reader_that_has_seen_enough_is_no_error(served: Served) -> None:
    """`segue ctl status | head`."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "segue", "ctl", "status", "--state-dir", str(served.state_dir)]
    environ = os.environ | {"PYTHONUNBUFFERED": "1"}
    done = subprocess.run(
        command, stdout=write, stderr=subprocess.PIPE, text=True, check=False, env=environ
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


def test_the_doctor_knows_whose_port_it_is(served: Served) -> None:
    port = served.url.rpartition(":")[2].partition("/")[0]
    command = [sys.executable, "-m", "segue", "doctor", "--port", port]
    command += ["--state-dir", str(served.state_dir)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert f"{port} of 127.0.0.1: `segue serve` answers there" in done.stdout


def test_a_reader_that_has_seen_enough_is_no_fault(served: Served) -> None:
    """As of `segue state | head -1`: the pipe is closed before anything is written to it."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "segue", "state", "--state-dir", str(served.state_dir)]
    done = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write_end)
    assert (done.returncode, done.stderr) == (141, "")


def test_unset_lets_the_flag_say_it_again(served: Served) -> None:
    ctl(served, "set", "watermark=0.25")
    assert row(served, "watermark") == ["watermark", "0.25", "0.0"]
    assert ctl(served, "unset", "watermark").returncode == 0
    assert row(served, "watermark") == ["watermark", "0.0"]


@pytest.mark.parametrize(
    "setting,reason",
    [
        ("block_size=32", "start the schedulers with another --block-size"),
        ("max_num_seqs=65", "max_num_batched_tokens must be at least max_num_seqs"),
        ("no_such=1", "no setting"),
        ("max_num_seqs", "is not KEY=VALUE"),
    ],
)
def test_a_refusal_is_one_line_with_its_reason(served: Served, setting: str, reason: str) -> None:
    done = ctl(served, "set", setting)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert reason in line
    assert "Traceback" not in line
