"""`python -m executor_svc`: reads the flags, then runs the process, if torch is here.

Knows the configuration and no tensor. Invariant: nothing that needs torch is imported before it was
looked for, so `--help` and the line that says what to install come on any machine.
"""

from __future__ import annotations

import os
import sys

from executor_svc.config import ExecutorServiceConfig
from segue.config import parse_config
from segue.executor_extra import ExecutorNotInstalled, require_executor


def main() -> None:
    config = parse_config(ExecutorServiceConfig)
    try:
        require_executor()
    except ExecutorNotInstalled as error:
        sys.exit(f"executor_svc: error: {error}")
    from executor_svc.process import run  # needs torch

    run(config)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    sys.stderr.flush()
    # A step that still computes would hold the interpreter, and nobody wants its result.
    os._exit(0)
