"""`segue ps`: what `segue serve` runs, with pids, and the lines to copy.

Knows serve.json; asks no service. Invariant: only processes that live now are shown as such.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from segue.commands.running_serve import NothingServed, add_state_dir_flag, running_serve
from segue.serve_summary import summary_lines

if TYPE_CHECKING:
    from argparse import _SubParsersAction  # pyright: ignore[reportPrivateUsage]


def register(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("ps", help="what `segue serve` runs, with pids and ports")
    add_state_dir_flag(parser)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    try:
        path, record = running_serve(args.state_dir)
    except NothingServed as error:
        print(f"segue ps: {error}", file=sys.stderr)
        return 1
    for one in record.processes:
        port = "" if one.port is None else str(one.port)
        state = "" if one.identity.is_alive() else "not running"
        print(f"{one.name:<14} {one.identity.pid:>8} {port:>6}  {state}".rstrip())
    for line in summary_lines(record, path):
        print(line)
    return 0
