"""Servers that a comparison starts."""

from __future__ import annotations

import sys
from pathlib import Path

from segue.bench.peers import Peer, running
from segue.process_identity import ProcessIdentity
from tests.served import wait_until

LEAVES_A_CHILD = """
import http.server, pathlib, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
pathlib.Path(sys.argv[2]).write_text(str(child.pid))
http.server.test(http.server.SimpleHTTPRequestHandler, port=int(sys.argv[1]), bind="127.0.0.1")
"""


def test_what_a_peer_leaves_ends_with_it(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    command = (sys.executable, "-c", LEAVES_A_CHILD, "{port}", str(pid_file))
    with running(Peer("one", command, "/", "any"), tmp_path / "log"):
        child = ProcessIdentity.of(int(pid_file.read_text()))
        assert child is not None
    wait_until(lambda: not child.is_alive(), "the end of what it left")
