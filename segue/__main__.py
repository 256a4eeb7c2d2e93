"""`segue COMMAND …`: hands the arguments to one module of segue/commands.

Knows no command: each module there with a `register` is one. Invariant: only the module of the
command that was named is imported, so that a command starts as fast as it can.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import sys
from collections.abc import Sequence

import segue.commands
from segue.version import VERSION


def main(argv: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(prog="segue", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"segue {VERSION}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    names = [module.name for module in pkgutil.iter_modules(segue.commands.__path__)]
    for name in [argv[0]] if argv and argv[0] in names else names:
        module = importlib.import_module(f"segue.commands.{name}")
        if hasattr(module, "register"):
            module.register(subparsers)
    args, unknown = parser.parse_known_args(argv)
    if unknown and not getattr(args, "takes_unknown", False):
        print(f"segue {args.command}: error: unknown argument {unknown[0]}", file=sys.stderr)
        return 2
    args.unknown = unknown
    try:
        code = args.func(args)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read it has seen enough: `segue state | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # as a shell says it of a program that SIGPIPE ended


if __name__ == "__main__":
    sys.exit(main())
