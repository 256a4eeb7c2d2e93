"""Children end with their parent: by the kernel on Linux, by a watcher elsewhere."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from segue.child import GUARD

GUARD_COMMAND = [sys.executable, "-I", "-S", str(GUARD)]


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def watch(lines: str) -> None:
    """Runs the watcher to its end; a pipe that closes is a parent that died."""
    subprocess.run([*GUARD_COMMAND, "watch"], input=lines, text=True, check=True)


def test_the_watcher_kills_what_a_dead_parent_left(sleeper: subprocess.Popen[bytes]) -> None:
    watch(f"+{sleeper.pid}\n")
    assert sleeper.wait() == -signal.SIGKILL


def test_the_watcher_spares_what_had_ended(sleeper: subprocess.Popen[bytes]) -> None:
    """Its pid may be another's by now."""
    watch(f"+{sleeper.pid}\n-{sleeper.pid}\n")
    assert sleeper.poll() is None


def test_the_watcher_kills_nothing_after_a_clean_end(sleeper: subprocess.Popen[bytes]) -> None:
    watch(f"+{sleeper.pid}\ndone\n")
    assert sleeper.poll() is None


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_nothing_starts_under_a_parent_that_is_gone() -> None:
    """Between fork and prctl the parent may die, and then no signal would ever come."""
    done = subprocess.run([*GUARD_COMMAND, "exec", "1", "echo", "started"], capture_output=True)
    assert done.returncode == 1
    assert done.stdout == b""
