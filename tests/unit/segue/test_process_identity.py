"""A pid alone names nobody: a process is its pid and its start."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from segue import process_identity
from segue.process_identity import ProcessIdentity


def test_a_living_process_is_recognised() -> None:
    own = ProcessIdentity.of(os.getpid())
    assert own is not None
    assert own.is_alive()
    assert ProcessIdentity.of(os.getpid()) == own


def test_another_start_time_is_another_process() -> None:
    stranger = ProcessIdentity(os.getpid(), "long ago")
    assert not stranger.is_alive()
    assert stranger.send(signal.SIGKILL) is False


def test_a_zombie_is_not_alive() -> None:
    """Nobody has waited for it yet, and there is nothing left to end."""
    process = subprocess.Popen(["sleep", "60"])
    identity = ProcessIdentity.of(process.pid)
    assert identity is not None
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not identity.is_alive()
    process.wait()


def test_what_ignores_sigterm_is_killed_after_its_grace() -> None:
    process = subprocess.Popen(["sh", "-c", "trap '' TERM; echo ready; sleep 60"], stdout=-1)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    identity = ProcessIdentity.of(process.pid)
    assert identity is not None
    identity.end(grace_s=0.05)
    assert process.wait() == -signal.SIGKILL
    process.stdout.close()


def test_where_there_is_no_proc_ps_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_identity, "PROC", Path("/nowhere"))
    process = subprocess.Popen(["sleep", "60"])
    identity = ProcessIdentity.of(process.pid)
    assert identity is not None
    assert identity.is_alive()
    process.kill()
    process.wait()
    assert not identity.is_alive()
