"""Compiles the C++ files of this directory for this very CPU, once, into the user's cache.

Knows a compiler's command line, no kernel. Invariant: a library is found under a name made of its
sources, its compiler and the CPU's abilities, and appears there whole or not at all, so that two
services that start together, or a cache that moves to another machine, do no harm.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCE_DIR = Path(__file__).parent
FLAGS = ("-O3", "-std=c++17", "-fPIC", "-pthread", "-Wall", "-Wno-psabi")
LINK_FLAGS = ("-shared", "-pthread")
COMPILE_TIMEOUT_S = 120


class BuildError(Exception):
    """There is no library; the message is one readable line."""


def build_library() -> Path:
    """The compiled library. Raises BuildError where there is no compiler, or it fails."""
    compiler = find_compiler()
    path = library_path(compiler)
    if not path.exists():
        _compile(compiler, path)
    return path


def library_path(compiler: list[str]) -> Path:
    """Where it is, or will be."""
    return cache_dir() / f"segue-kernels-{_fingerprint(compiler)}.so"


def find_compiler() -> list[str]:
    """$CXX, or the first of the usual ones."""
    named = shlex.split(os.environ.get("CXX", ""))
    for command in [named] if named else [["g++"], ["clang++"], ["c++"]]:
        path = shutil.which(command[0])
        if path is not None:
            return [path, *command[1:]]
    raise BuildError("there is no C++ compiler (g++, clang++, $CXX)")


def cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "segue" / "native"


def sources() -> list[Path]:
    return sorted(SOURCE_DIR.glob("*.cpp"))


def _compile(compiler: list[str], path: Path) -> None:
    """Each file on a core of its own: two of them take most of the time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
            made = {source: str(Path(scratch) / f"{source.stem}.o") for source in sources()}
            to_object = [*compiler, *FLAGS, _cpu_flag(), "-c"]
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                commands = [[*to_object, str(source), "-o", out] for source, out in made.items()]
                list(pool.map(_run, commands))
            out = Path(scratch) / path.name
            _run([*compiler, *LINK_FLAGS, *made.values(), "-o", str(out)])
            out.replace(path)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{compiler[0]}: {error}") from error


def _run(command: list[str]) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False
    )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise BuildError(f"{command[0]}: {lines[0]}")


def _cpu_flag() -> str:
    return "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"


def _fingerprint(compiler: list[str]) -> str:
    digest = hashlib.sha256()
    for path in sorted(SOURCE_DIR.glob("*.[ch]*")):
        digest.update(path.name.encode() + path.read_bytes())
    stat = Path(compiler[0]).stat()
    digest.update(f"{compiler} {stat.st_size} {stat.st_mtime_ns} {FLAGS} {_cpu()}".encode())
    return digest.hexdigest()[:16]


def _cpu() -> str:
    """What this CPU can do, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    keys = ("flags", "Features", "model name")
    seen = {line for line in lines if line.split("\t")[0].strip() in keys}
    return f"{platform.machine()} {platform.processor()} {sorted(seen)}"
