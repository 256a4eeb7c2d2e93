"""A real supervisor process over trivial children: whatever dies, nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from segue.process_identity import ProcessIdentity
from segue.state_directory import ServedProcess, ServeRecord, StateDirectory, read_record

DEADLINE_S = 8.0


class Supervised:
    """One run of tests.supervised_sleepers, and the lines that it has printed so far."""

    def __init__(self, path: Path, word: str) -> None:
        self.path = path
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.supervised_sleepers", str(path), word],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []

    def read_until(self, text: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            if text in line:
                return line
        raise AssertionError(f"{text!r} is not in {self.lines}")

    def record(self) -> ServeRecord:
        record = read_record(self.path)
        assert record is not None
        return record

    def identity(self, name: str) -> ProcessIdentity:
        return next(one.identity for one in self.record().processes if one.name == name)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


Start = Callable[..., Supervised]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Supervised] = []

    def start(word: str = "hello") -> Supervised:
        started.append(Supervised(tmp_path / "state", word))
        return started[-1]

    yield start
    for one in started:
        one.end()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.01)


def test_lines_are_shown_under_the_child_s_name_and_logged(start: Start) -> None:
    supervised = start()
    supervised.read_until("all ready")
    wait_until(lambda: (supervised.path / "logs" / "second.log").read_text() == "hello\n")
    supervised.process.send_signal(signal.SIGTERM)
    supervised.read_until("first        | leaving")
    assert "second       | hello" in supervised.lines


def test_children_stop_from_the_highest_stage_down(start: Start) -> None:
    """Redis is the lowest stage: a scheduler that says goodbye still needs it."""
    supervised = start()
    supervised.read_until("all ready")
    supervised.process.send_signal(signal.SIGINT)
    supervised.read_until("first        | leaving")
    assert supervised.lines[-2:] == ["second       | leaving", "first        | leaving"]
    assert supervised.process.wait() == 0
    assert read_record(supervised.path) is None


def test_a_killed_child_is_started_again_and_one_line_says_so(start: Start) -> None:
    supervised = start()
    supervised.read_until("all ready")
    before = supervised.identity("first")
    os.kill(before.pid, signal.SIGKILL)
    line = supervised.read_until("first (killed by SIGKILL) is back after")
    after = supervised.identity("first")
    assert after.is_alive()
    assert after != before
    assert f"pid {after.pid} · described first" in line
    assert supervised.identity("second").is_alive()


def test_a_second_start_is_refused_with_the_first_one_s_pid(start: Start) -> None:
    """Two Redis servers on one directory both start and both write."""
    first = start()
    first.read_until("all ready")
    second = start()
    line = second.read_until("refused")
    assert f"pid {first.process.pid}" in line
    assert second.process.wait() == 1
    assert first.identity("first").is_alive()


def test_children_end_with_a_supervisor_that_is_killed(start: Start) -> None:
    supervised = start()
    supervised.read_until("all ready")
    identities = [one.identity for one in supervised.record().processes]
    assert [one.is_alive() for one in identities] == [True, True]
    supervised.process.kill()
    wait_until(lambda: not any(one.is_alive() for one in identities))


def test_a_start_ends_what_an_earlier_one_left(start: Start, tmp_path: Path) -> None:
    """Where the system could not end the children with their parent, the next start does."""
    leftover = subprocess.Popen(["sleep", "60"])
    try:
        identity = ProcessIdentity.of(leftover.pid)
        assert identity is not None
        _write_record(tmp_path / "state", identity)
        supervised = start()
        supervised.read_until(f"ended left ({leftover.pid})")
        assert leftover.wait() == -signal.SIGTERM
    finally:
        leftover.kill()
        leftover.wait()


def test_a_pid_that_is_used_again_is_never_killed(start: Start, tmp_path: Path) -> None:
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        _write_record(tmp_path / "state", ProcessIdentity(bystander.pid, "another time"))
        start().read_until("all ready")
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_what_never_starts_is_one_line_with_its_last_words(start: Start) -> None:
    supervised = start("broken")
    line = supervised.read_until("refused")
    assert "does not start (exit code 3): broken" in line
    assert supervised.process.wait() == 1


def _write_record(path: Path, identity: ProcessIdentity) -> None:
    directory = StateDirectory.open(path)
    directory.write_record(ServeRecord(identity, processes=(ServedProcess("left", identity),)))
    directory.close()
