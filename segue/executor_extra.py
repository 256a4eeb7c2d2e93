"""Whether what an executor needs is installed: the extra that a scheduler's machine goes without.

Knows the extra's one large package by name and imports nothing of it. Invariant: the message is one
readable line that says what to do.
"""

from __future__ import annotations

from importlib.util import find_spec


class ExecutorNotInstalled(Exception):
    """The message is one readable line."""


def require_executor() -> None:
    if find_spec("torch") is None:
        raise ExecutorNotInstalled(
            "no executor can run here, torch is not installed: pip install 'segue[executor]'"
        )
