"""What differs between two states, in words.

Knows nothing about what a row means.
"""

from __future__ import annotations

from scheduler_svc.core.rows import Rows


def difference(one: Rows, other: Rows) -> str:
    """The first few rows that differ, for people."""
    parts: list[str] = []
    for name in ("hashes", "ranks", "strings"):
        mine, theirs = getattr(one, name), getattr(other, name)
        for key in sorted({*mine, *theirs}, key=str):
            if mine.get(key) != theirs.get(key):
                parts.append(f"{key.table.value}:{key.owner} {mine.get(key)} != {theirs.get(key)}")
    return "; ".join(parts[:4])
