"""Finds stop strings in growing text, and says how much of it is safe to show.

Knows nothing about tokens. Invariant: what was called safe is never taken back: text that may yet
turn out to begin a stop string is held until that is decided.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class StopMatch:
    """The stop string that ends the text, and where the text is cut."""

    stop: str
    cut: int


class StopStrings:
    def __init__(self, stops: tuple[str, ...], *, include_in_output: bool = False) -> None:
        self._stops = stops
        self._include_in_output = include_in_output

    def find(self, text: str, new_from: int) -> StopMatch | None:
        """The first stop string that ends after `new_from`; of two at one place the first given."""
        best: tuple[int, StopMatch] | None = None
        for stop in self._stops:
            at = text.find(stop, max(0, new_from - len(stop) + 1))
            if at >= 0 and (best is None or at < best[0]):
                cut = at + len(stop) if self._include_in_output else at
                best = (at, StopMatch(stop, cut))
        return None if best is None else best[1]

    def num_held_back(self, text: str) -> int:
        """Length of the longest end of `text` with which a stop string begins."""
        if self._include_in_output:  # nothing before the end of a stop string is ever cut
            return 0
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:length]):
                    longest = length
                    break
        return longest
