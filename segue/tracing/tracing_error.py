"""What is told where the environment asks for tracing that we do not have.

Knows nothing else. Invariant: the message is one readable line.
"""

from __future__ import annotations


class TracingError(Exception):
    """Before anything has started."""
