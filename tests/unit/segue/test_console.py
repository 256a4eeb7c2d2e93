"""Lines under names, and a bar that the next line replaces."""

from __future__ import annotations

import io
import os

import pytest

from segue.console import Console


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_pipe_gets_plain_lines_and_no_progress() -> None:
    out = io.StringIO()
    console = Console(out)
    console.progress("executor-0", "10 %")
    console.show("executor-0", "ready")
    assert out.getvalue() == "executor-0   | ready\n"


def test_a_terminal_s_bar_is_replaced_by_the_next_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    console = Console(out)
    console.progress("executor-0", "10 %")
    console.say("ready")
    assert out.getvalue() == "\r\x1b[Kexecutor-0   | 10 %\r\x1b[Ksegue        | ready\n"


def test_each_name_has_its_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    console = Console(out)
    for name in ("a", "b", "a"):
        console.show(name, "")
    first, second, third = out.getvalue().splitlines()
    assert first == third
    assert first[:5] != second[:5]


def test_a_reader_that_has_gone_is_no_error() -> None:
    """`segue serve | head` serves on."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as out:
        console = Console(out)
        console.say("nobody hears this")
        console.say("nor this")
