"""The directory of one `segue serve`: its lock, what it runs, its Redis data and its logs.

Knows files; knows nothing about what the processes do. Invariant: whoever holds `lock` is the only
one that writes here, and `serve.json` names every process that was started under it, before
anything depends on that process.

    lock         held while `serve` runs; holds its pid
    serve.json   processes (pid, start time, port), addresses, the model
    redis/       the embedded server's data
    logs/        one file for each process
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

from segue.process_identity import ProcessIdentity

LEAST_FREE_BYTES = 64 << 20
MAX_LOG_BYTES = 16 << 20


class StateDirectoryError(Exception):
    """The directory can not be used; the message is one readable line."""


@dataclass(slots=True, frozen=True)
class ServedProcess:
    """One child of a `serve`, as serve.json names it."""

    name: str
    identity: ProcessIdentity
    port: int | None = None


@dataclass(slots=True, frozen=True)
class ServeRecord:
    """What serve.json says: enough to find a running `serve`, or to end what it left."""

    supervisor: ProcessIdentity
    url: str = ""
    redis_url: str = ""
    deployment: str = ""
    schedulers: tuple[str, ...] = ()
    model: str = ""
    has_chat_template: bool = False
    processes: tuple[ServedProcess, ...] = field(default=())

    def as_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> ServeRecord:
        """Raises ValueError where it is not one of ours."""
        try:
            content: dict[str, Any] = json.loads(text)
            processes = tuple(
                ServedProcess(one["name"], ProcessIdentity(**one["identity"]), one["port"])
                for one in content.pop("processes")
            )
            supervisor = ProcessIdentity(**content.pop("supervisor"))
            schedulers = tuple(content.pop("schedulers"))
            return cls(supervisor, schedulers=schedulers, processes=processes, **content)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"serve.json: {error}") from error


def default_state_directory(model_name: str, environ: Mapping[str, str] = os.environ) -> Path:
    """One for each model, under the user's state directory."""
    base = environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "segue" / model_name


class StateDirectory:
    """A directory that is ours while this object is open."""

    def __init__(self, path: Path, lock: TextIO) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def open(cls, path: Path) -> StateDirectory:
        """Takes the lock. Raises `StateDirectoryError` where another holds it, or nothing fits."""
        try:
            # Prompts and answers are in here, and may be a password of a Redis.
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = (path / "lock").open("a+", encoding="utf-8")
        except OSError as error:
            raise _readable(path, error) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.seek(0)
            holder = lock.read().strip()
            lock.close()
            raise StateDirectoryError(
                f"{path} is in use by `segue serve` with pid {holder or 'unknown'}"
            ) from error
        directory = cls(path, lock)
        try:
            directory._prepare()
        except BaseException:
            directory.close()
            raise
        return directory

    def close(self) -> None:
        self._lock.close()

    @property
    def redis_path(self) -> Path:
        return self.path / "redis"

    @property
    def logs_path(self) -> Path:
        return self.path / "logs"

    def write_record(self, record: ServeRecord) -> None:
        """Atomic: a reader, and the next start, see the old one or the new one."""
        scratch = self.path / "serve.json.new"
        try:
            scratch.write_text(record.as_json(), encoding="utf-8")
            scratch.replace(self.path / "serve.json")
        except OSError as error:
            raise _readable(self.path, error) from error

    def remove_record(self) -> None:
        (self.path / "serve.json").unlink(missing_ok=True)

    def end_leftovers(self, grace_s: float) -> list[str]:
        """Ends what an earlier `serve` left running; the names and pids of what was ended."""
        ended: list[str] = []
        try:
            record = read_record(self.path)
        except ValueError:
            return ended
        for process in reversed(record.processes) if record else ():
            if process.identity.is_alive():
                ended.append(f"{process.name} ({process.identity.pid})")
                process.identity.end(grace_s)
        return ended

    def forget_redis(self) -> None:
        """For --fresh: the state is gone, the logs stay."""
        shutil.rmtree(self.redis_path, ignore_errors=True)
        self.redis_path.mkdir()

    def open_log(self, name: str) -> TextIO:
        """Appends; a log that has grown large becomes `.old` first."""
        path = self.logs_path / f"{name}.log"
        if path.exists() and path.stat().st_size > MAX_LOG_BYTES:
            path.replace(path.with_suffix(".log.old"))
        return path.open("a", encoding="utf-8", buffering=1)

    def _prepare(self) -> None:
        try:
            free = shutil.disk_usage(self.path).free
            if free < LEAST_FREE_BYTES:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._lock.truncate(0)
            self._lock.write(f"{os.getpid()}\n")
            self._lock.flush()
            self.redis_path.mkdir(exist_ok=True)
            self.logs_path.mkdir(exist_ok=True)
        except OSError as error:
            raise _readable(self.path, error) from error


def read_record(path: Path) -> ServeRecord | None:
    """What runs (or ran) on this state directory; None where nothing did."""
    try:
        text = (path / "serve.json").read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    return ServeRecord.from_json(text)


def _readable(path: Path, error: OSError) -> StateDirectoryError:
    if error.errno == errno.ENOSPC:
        return StateDirectoryError(
            f"{path}: the disk is full ({LEAST_FREE_BYTES >> 20} MiB needed)"
        )
    return StateDirectoryError(f"{path}: {error.strerror or error}")
