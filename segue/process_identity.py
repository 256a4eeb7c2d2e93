"""Tells whether a process is still the one that we started, and ends it.

Knows pids and start times; knows nothing about services. Invariant: a signal goes only to a process
whose start time is the one noted, so a pid that the system has used again is never killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

POLL_S = 0.02
PROC = Path("/proc")


@dataclass(slots=True, frozen=True)
class ProcessIdentity:
    """A pid, and when that process started (in words of the system; unique within a pid)."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """None: there is no such process, or it has ended and nobody has waited for it yet."""
        started = _start_time(pid)
        return cls(pid, started) if started else None

    def is_alive(self) -> bool:
        return _start_time(self.pid) == self.started

    def send(self, number: signal.Signals) -> bool:
        """Whether the process was there to get the signal."""
        if not self.is_alive():
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    def end(self, grace_s: float) -> None:
        """SIGTERM, and SIGKILL after `grace_s`; returns when it is gone."""
        self.send(signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while self.is_alive():
            if time.monotonic() > deadline:
                self.send(signal.SIGKILL)
            time.sleep(POLL_S)


def _start_time(pid: int) -> str:
    """Empty where there is no such process."""
    if not (PROC / "self" / "stat").exists():
        return _start_time_by_ps(pid)
    try:
        stat = (PROC / str(pid) / "stat").read_text()
        boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
    # After the command's name, which may hold anything up to the last parenthesis: fields 3 to 52.
    fields = stat[stat.rindex(")") + 2 :].split()
    state, ticks_since_boot = fields[0], fields[19]
    return "" if state in "ZX" else f"{boot}/{ticks_since_boot}"


def _start_time_by_ps(pid: int) -> str:
    shown = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout.strip()
    state, _, started = shown.partition(" ")
    return "" if state.startswith("Z") else started.strip()
