"""Rows as lines of aligned columns; knows nothing about what they say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

GAP = "  "


def text_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """A heading and a line for each row. Numbers stand to the right."""
    rows = [list(row) for row in rows]
    cells = [list(columns), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    is_number = [
        bool(rows) and all(isinstance(r[i], int) for r in rows) for i in range(len(columns))
    ]
    return [
        GAP.join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, is_number, strict=True)
        ).rstrip()
        for row in cells
    ]
