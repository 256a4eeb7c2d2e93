"""Prints what several processes say on one terminal, each line under its process's name.

Knows terminals; knows nothing about processes. Invariant: a line is written whole, and a reader
that went away is no error.
"""

from __future__ import annotations

import os
import sys
from typing import TextIO

OWN_NAME = "segue"
NAME_WIDTH = 12
_COLOURS = (36, 32, 33, 35, 34, 96, 92, 93)
_ERASE_LINE = "\r\x1b[K"


class Console:
    """`show` for lines, `progress` for the bar of one process, which the next line replaces."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = sys.stdout if out is None else out
        self._is_terminal = self._out.isatty() and os.environ.get("TERM") != "dumb"
        self._has_colour = self._is_terminal and "NO_COLOR" not in os.environ
        self._colours: dict[str, int] = {}
        self._has_progress = False

    def show(self, name: str, text: str) -> None:
        erase = _ERASE_LINE if self._has_progress else ""
        self._has_progress = False
        self._write(f"{erase}{self._label(name)} | {text}\n")

    def say(self, text: str) -> None:
        """A line of our own."""
        self.show(OWN_NAME, text)

    def progress(self, name: str, text: str) -> None:
        if self._is_terminal:
            self._has_progress = True
            self._write(f"{_ERASE_LINE}{self._label(name)} | {text}")

    def _label(self, name: str) -> str:
        padded = f"{name:<{NAME_WIDTH}}"
        if not self._has_colour:
            return padded
        colour = self._colours.setdefault(name, _COLOURS[len(self._colours) % len(_COLOURS)])
        return f"\x1b[{colour}m{padded}\x1b[0m"

    def _write(self, text: str) -> None:
        try:
            self._out.write(text)
            self._out.flush()
        except BrokenPipeError:
            # Whoever read us has gone; the services go on, and their logs are in files.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._out.fileno())
