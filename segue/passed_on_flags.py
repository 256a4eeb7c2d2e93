"""The flags of `segue serve` that the scheduler is to judge, judged before anything is started.

Knows their names and which module reads them, and imports no service. Invariant: a flag that is
refused has changed nothing, and the message names it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches

from segue.config import flag, to_flags, variable
from segue.config_file import Scalar
from segue.serve_config import PASSED_ON_FLAGS, SCHEDULER_FLAGS, ServeConfig


class FlagRefused(Exception):
    """The message is one readable line."""


def passed_on_flags() -> list[str]:
    return [flag(name) for name in PASSED_ON_FLAGS]


def check_passed_on(arguments: Sequence[str]) -> None:
    """Whether each is one that is passed on; others of the scheduler's are not a user's to set."""
    allowed = {*passed_on_flags(), *(flag(f"no_{name}") for name in PASSED_ON_FLAGS)}
    known = [*passed_on_flags(), *(flag(one.name) for one in fields(ServeConfig))]
    for argument in arguments:
        name = argument.partition("=")[0]
        if not name.startswith("--") or name in allowed:
            continue
        close = get_close_matches(name, known, n=1)
        advice = f"did you mean {close[0]}?" if close else "--help lists all"
        raise FlagRefused(f"unknown argument {name}; {advice}")


def check_scheduler_flags(config: ServeConfig, passed_on: Sequence[str]) -> None:
    """Asks the scheduler itself, so that names, values and combinations are judged in one place."""
    command = [sys.executable, "-m", "scheduler_svc.check_flags"]
    command += [*to_flags(config, SCHEDULER_FLAGS), *passed_on]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    if asked.returncode:
        line = asked.stderr.strip().rpartition("\n")[2]
        raise FlagRefused(line.partition("error: ")[2] or line)


def flags_in_file(
    stored: Mapping[str, Scalar], environ: Mapping[str, str] = os.environ
) -> list[str]:
    """What a configuration file says for the scheduler, as flags; a variable beats the file."""
    flags: list[str] = []
    for name in PASSED_ON_FLAGS:
        value = stored.get(name)
        if value is None or variable(name) in environ:
            continue
        if isinstance(value, bool):
            flags.append(flag(name if value else f"no_{name}"))
        else:
            flags.append(f"{flag(name)}={value}")
    return flags
