"""Reads the scheduler's flags and judges them together; `python -m` of it does no more than that.

Knows which policies there are; starts nothing. Invariant: flags that pass build an engine, and what
does not pass is one line on stderr and exit code 2.
"""

from __future__ import annotations

import sys
from typing import NoReturn

from scheduler_svc.config import SchedulerServiceConfig
from scheduler_svc.policies import UnknownPolicy, load_policy, takes_v0_flags
from segue.config import parse_config


def read_flags() -> SchedulerServiceConfig:
    """The process's own."""
    config = parse_config(SchedulerServiceConfig)
    try:
        policy = load_policy(config.policy)
        if config.is_for_v0 and not takes_v0_flags(policy):
            _refuse(f"{config.policy} takes neither swap, --delay-factor nor --max-paddings")
        config.engine_config()
    except (UnknownPolicy, ValueError) as error:
        _refuse(str(error))
    return config


def _refuse(message: str) -> NoReturn:
    print(f"scheduler_svc: error: {message}", file=sys.stderr)
    raise SystemExit(2)


if __name__ == "__main__":
    read_flags()
