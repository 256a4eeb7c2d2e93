"""Servers that a comparison starts: ours, llama.cpp's, vLLM's; each a process of its own.

Knows their command lines and when they are ready. Invariant: what was started is stopped, and
what it left behind, before the next one starts; its output is in a file that an error names.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from segue.serve_plan import LOOPBACK, free_ports

READY_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 30.0
POLL_S = 0.2


class PeerFailed(Exception):
    """It can not be started; the message is one readable line."""


@dataclass(slots=True, frozen=True)
class Peer:
    """`{port}` in the command is a free port; `ready` a path that answers 200 in good time."""

    name: str
    command: tuple[str, ...]
    ready: str
    model: str  # what requests call it


def ours(model: Path, scratch: Path, num_threads: int, flags: Sequence[str] = ()) -> Peer:
    """`flags`: of `segue serve`, besides."""
    command = [sys.executable, "-m", "segue", "serve", "--model", str(model), "--port", "{port}"]
    command += ["--state-dir", str(scratch / "state"), "--fresh"]
    if num_threads:
        command += ["--num-threads", str(num_threads)]
    return Peer("segue", (*command, *flags), "/ready", model.name)


def llama_cpp(program: str, gguf: Path | None, num_slots: int, num_threads: int) -> Peer:
    if gguf is None:
        raise PeerFailed("llama.cpp needs its own file of the model: --gguf FILE")
    command = [program, "-m", str(gguf), "--host", LOOPBACK, "--port", "{port}"]
    # Its context is shared by its slots.
    command += ["-np", str(num_slots), "-c", str(num_slots * 1024), "--no-webui"]
    if num_threads:
        command += ["-t", str(num_threads)]
    return Peer("llama.cpp", tuple(command), "/health", gguf.name)


def vllm(python: str, model: Path) -> Peer:
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--served-model-name", model.name, "--host", LOOPBACK, "--port", "{port}"]
    return Peer("vllm", tuple(command), "/health", model.name)


@contextmanager
def running(peer: Peer, log: Path) -> Generator[str]:
    """Its address, while it runs."""
    (port,) = free_ports(1)
    command = [part.format(port=port) for part in peer.command]
    with log.open("ab") as out:
        try:
            process = subprocess.Popen(
                command,
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise PeerFailed(f"{peer.name}: {command[0]}: {error.strerror}") from error
    try:
        url = f"http://{LOOPBACK}:{port}"
        _wait_ready(peer, process, url + peer.ready, log)
        yield url
    finally:
        _stop(process)


def _wait_ready(peer: Peer, process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while not _answers(url):
        code = process.poll()
        if code is not None:
            raise PeerFailed(f"{peer.name} ended with {code}: {_last_line(log)} ({log})")
        if time.monotonic() > deadline:
            raise PeerFailed(f"{peer.name} is not ready after {READY_TIMEOUT_S:g} s ({log})")
        time.sleep(POLL_S)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return response.status == 200
    except (urllib.error.URLError, OSError):
        return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    try:
        process.terminate()
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    finally:
        # vLLM's workers have been seen to outlive it, and would compete with who comes next.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _last_line(log: Path) -> str:
    lines: Sequence[str] = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
