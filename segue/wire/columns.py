"""Ragged columns: a flat array and a column of lengths, and back. Knows nothing about messages.

Invariant: lengths add up to the flat array's; what does not is refused, since a shifted column
would give one request's tokens to another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, chain


def flatten(rows: Iterable[Sequence[int]]) -> list[int]:
    return list(chain.from_iterable(rows))


def split(flat: list[int], lengths: Sequence[int]) -> list[list[int]]:
    check_lengths(flat, lengths)
    ends = list(accumulate(lengths))
    return [flat[end - length : end] for end, length in zip(ends, lengths, strict=True)]


def check_lengths(flat: list[int], lengths: Sequence[int]) -> None:
    if sum(lengths) != len(flat):
        raise ValueError(f"a column of {len(flat)} with lengths for {sum(lengths)}")


def pairs(flat: list[int]) -> list[tuple[int, int]]:
    return list(zip(flat[::2], flat[1::2], strict=True))
