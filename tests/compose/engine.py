"""A Docker engine for these tests: one that answers, else one that scripts/docker_engine.sh starts.

Knows nothing about Segue's services. Invariant: an engine that was started here is stopped here,
and the machine's network is then as it was; one that was found is left alone.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.source_tree import ROOT

SCRIPT = ROOT / "scripts" / "docker_engine.sh"
NOT_POSSIBLE_HERE = 3  # the script's exit code
STAND_INS = {"PYTHON_IMAGE": "segue-standin/python:3.11", "REDIS_IMAGE": "segue-standin/redis:7"}
LOCK = Path("/var/tmp/segue-docker.lock")
ANSWER_TIMEOUT_S = 20
PULL_TIMEOUT_S = 300


class NoEngine(Exception):
    """The message says why there is none here."""


class Engine:
    """`environ`: of every docker command that is to reach it."""

    def __init__(self, environ: dict[str, str]) -> None:
        self.environ = environ

    def docker(self, *arguments: str, timeout_s: float = 300) -> str:
        """Its output; fails with all of it where the command does."""
        done = subprocess.run(
            ["docker", *arguments],
            env=self.environ,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, f"docker {' '.join(arguments)}:\n{done.stdout[-20_000:]}"
        return done.stdout

    def succeeds(self, *arguments: str, timeout_s: float = 300) -> bool:
        try:
            self.docker(*arguments, timeout_s=timeout_s)
        except (AssertionError, OSError, subprocess.TimeoutExpired):
            return False
        return True

    def base_images(self, wanted: dict[str, str]) -> dict[str, str]:
        """`wanted` where a registry has them, else stand-ins made from Debian's packages."""
        if self.succeeds("image", "inspect", *STAND_INS.values()):
            return STAND_INS
        if all(self.succeeds("pull", name, timeout_s=PULL_TIMEOUT_S) for name in wanted.values()):
            return wanted
        _script("images", self.environ)
        return STAND_INS


@contextmanager
def running_engine() -> Iterator[Engine]:
    """Raises NoEngine where none answers and none can be started."""
    found = Engine(dict(os.environ))
    if found.succeeds("info", timeout_s=ANSWER_TIMEOUT_S) and found.succeeds("compose", "version"):
        yield found
        return
    try:
        lock = LOCK.open("w")
    except OSError as error:
        raise NoEngine(f"no Docker engine answers, and {error.strerror}: {LOCK}") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another run of these tests would lose its engine
        try:
            yield start_own(found.environ)
        finally:
            _script("down", found.environ)


def start_own(environ: dict[str, str]) -> Engine:
    address = _script("up", environ).splitlines()[-1]
    return Engine({**environ, "DOCKER_HOST": address})


def _script(command: str, environ: dict[str, str]) -> str:
    done = subprocess.run(
        [SCRIPT, command], env=environ, capture_output=True, text=True, check=False
    )
    if done.returncode == NOT_POSSIBLE_HERE:
        reason = done.stderr.strip().splitlines()[-1]
        raise NoEngine(f"no Docker engine answers, and none can be started here: {reason}")
    assert done.returncode == 0, f"{SCRIPT.name} {command}:\n{done.stdout}{done.stderr}"
    return done.stdout.strip()
