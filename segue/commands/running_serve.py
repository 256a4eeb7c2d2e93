"""Finds the `segue serve` that a command is about.

Knows state directories; starts nothing. Invariant: either exactly one running `serve` is meant, or
the command ends with one line that says what to add.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from segue.state_directory import ServeRecord, default_state_directory, read_record


class NothingServed(Exception):
    """No `serve` is meant; the message is one readable line."""


def add_state_dir_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--state-dir", type=Path, metavar="PATH", help="of the `segue serve` meant")


def running_serve(state_dir: Path | None) -> tuple[Path, ServeRecord]:
    """The state directory that was named, else the only one that something runs on."""
    if state_dir is not None:
        record = _running_record(state_dir)
        if record is None:
            raise NothingServed(f"nothing is served from {state_dir}")
        return state_dir.resolve(), record
    base = default_state_directory("")
    found = [(path, record) for path in _children(base) if (record := _running_record(path))]
    if not found:
        raise NothingServed(f"nothing is served from {base}; name another with --state-dir")
    if len(found) > 1:
        names = ", ".join(str(path) for path, _ in found)
        raise NothingServed(f"several are served; choose with --state-dir one of {names}")
    return found[0]


def _children(base: Path) -> list[Path]:
    return sorted(path for path in base.iterdir() if path.is_dir()) if base.is_dir() else []


def _running_record(path: Path) -> ServeRecord | None:
    try:
        record = read_record(path)
    except (OSError, ValueError):
        return None
    return record if record is not None and record.supervisor.is_alive() else None
