"""One line of `segue doctor`: what was looked at, how it is, and what to do.

Knows no check. Invariant: what is not ok says what to do.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Level(Enum):
    OK = "ok"
    WARN = "warn"  # it runs; something is slower, or less safe, than it could be
    FAIL = "fail"  # `segue serve` would not run


@dataclass(slots=True, frozen=True)
class Finding:
    name: str
    level: Level
    text: str
    advice: str = ""

    def __post_init__(self) -> None:
        assert (self.level is Level.OK) == (not self.advice)

    def __str__(self) -> str:
        line = f"{self.level.value:<5} {self.name:<9} {self.text}"
        return f"{line}: {self.advice}" if self.advice else line


def ok(name: str, text: str) -> Finding:
    return Finding(name, Level.OK, text)


def warn(name: str, text: str, advice: str) -> Finding:
    return Finding(name, Level.WARN, text, advice)


def fail(name: str, text: str, advice: str) -> Finding:
    return Finding(name, Level.FAIL, text, advice)
