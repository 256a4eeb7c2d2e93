"""Ragged columns: a flat array and a column of lengths, and back. Knows nothing about messages.

Invariant: lengths add up to the flat array's; what does not is refused, since a shifted column
would give one request's tokens to another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain


def flatten(rows: Iterable[Sequence[int]]) -> list[int]:
    return list(chain.from_iterable(rows))


def split(flat: list[int], lengths: Iterable[int]) -> list[list[int]]:
    rows: list[list[int]] = []
    start = 0
    for length in lengths:
        rows.append(flat[start : start + length])
        start += length
    if start != len(flat):
        raise ValueError(f"a column of {len(flat)} with lengths for {start}")
    return rows


def check_lengths(flat: list[int], lengths: list[int]) -> None:
    if sum(lengths) != len(flat):
        raise ValueError(f"a column of {len(flat)} with lengths for {sum(lengths)}")


def pairs(flat: list[int]) -> list[tuple[int, int]]:
    return list(zip(flat[::2], flat[1::2], strict=True))
