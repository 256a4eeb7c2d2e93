"""The lock, and what is said where a directory can not be used."""

from __future__ import annotations

import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from segue.process_identity import ProcessIdentity
from segue.state_directory import (
    MAX_LOG_BYTES,
    ServedProcess,
    ServeRecord,
    StateDirectory,
    StateDirectoryError,
    default_state_directory,
    read_record,
)


def test_the_default_is_one_directory_for_each_model() -> None:
    environ = {"XDG_STATE_HOME": "/somewhere"}
    assert default_state_directory("tiny", environ) == Path("/somewhere/segue/tiny")


def test_the_lock_is_refused_while_it_is_held(tmp_path: Path) -> None:
    directory = StateDirectory.open(tmp_path)
    with pytest.raises(StateDirectoryError, match=f"pid {os.getpid()}"):
        StateDirectory.open(tmp_path)
    directory.close()
    StateDirectory.open(tmp_path).close()


def test_a_record_is_read_back(tmp_path: Path) -> None:
    own = ProcessIdentity.of(os.getpid())
    assert own is not None
    record = ServeRecord(
        own, url="u", schedulers=("a", "b"), processes=(ServedProcess("x", own, 1),)
    )
    directory = StateDirectory.open(tmp_path)
    directory.write_record(record)
    directory.close()
    assert read_record(tmp_path) == record


def test_a_broken_record_ends_nothing(tmp_path: Path) -> None:
    directory = StateDirectory.open(tmp_path)
    (tmp_path / "serve.json").write_text('{"processes": 3}')
    assert directory.end_leftovers(0.0) == []
    directory.close()


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1, 1, 0))
    with pytest.raises(StateDirectoryError, match="the disk is full"):
        StateDirectory.open(tmp_path)
    monkeypatch.undo()
    StateDirectory.open(tmp_path).close()


def test_a_path_that_is_a_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateDirectoryError, match="file"):
        StateDirectory.open(tmp_path / "file")


def test_a_log_that_has_grown_is_put_aside(tmp_path: Path) -> None:
    directory = StateDirectory.open(tmp_path)
    path = directory.logs_path / "x.log"
    with path.open("wb") as file:
        file.truncate(MAX_LOG_BYTES + 1)
    directory.open_log("x").close()
    assert path.stat().st_size == 0
    assert path.with_suffix(".log.old").stat().st_size == MAX_LOG_BYTES + 1
    directory.close()


def test_forgetting_empties_redis_and_keeps_logs(tmp_path: Path) -> None:
    directory = StateDirectory.open(tmp_path)
    (directory.redis_path / "appendonly.aof").write_text("rows")
    (directory.logs_path / "x.log").write_text("line")
    directory.forget_redis()
    assert list(directory.redis_path.iterdir()) == []
    assert (directory.logs_path / "x.log").exists()
    directory.close()
