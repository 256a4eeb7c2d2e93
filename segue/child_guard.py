"""Makes a child end when its parent does, however the parent dies.

Knows nothing but the standard library and no child of its own; run as a file, so that it starts in
milliseconds. Invariant: between `fork` and the child's own program nothing runs but `exec`.

    child_guard.py exec PARENT_PID COMMAND…   Linux: becomes COMMAND, killed with its parent
    child_guard.py watch                      elsewhere: reads "+PID" and "-PID" lines, and when
                                              they end without "done", kills what is left
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import NoReturn

PR_SET_PDEATHSIG = 1


def main() -> None:
    if sys.argv[1] == "watch":
        watch()
    else:
        become(int(sys.argv[2]), sys.argv[3:])


def become(parent_pid: int, command: list[str]) -> NoReturn:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit(f"child_guard: prctl: {os.strerror(ctypes.get_errno())}")
    # The parent may have died before the line above: then no signal will come.
    if os.getppid() != parent_pid:
        sys.exit(1)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


def watch() -> None:
    # The terminal's Ctrl-C reaches the parent, which stops its children in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pids: set[int] = set()
    for line in sys.stdin:
        if line.strip() == "done":
            return
        pid = int(line[1:])
        if line[0] == "+":
            pids.add(pid)
        else:
            pids.discard(pid)
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


if __name__ == "__main__":
    main()
