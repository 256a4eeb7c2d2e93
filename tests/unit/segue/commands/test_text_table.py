"""Columns that line up."""

from __future__ import annotations

from segue.commands.text_table import text_table


def test_text_stands_left_and_numbers_right() -> None:
    assert text_table(("name", "n"), [("a", 5), ("long one", 12)]) == [
        "name       n",
        "a          5",
        "long one  12",
    ]


def test_no_rows_are_a_heading() -> None:
    assert text_table(("name", "n"), []) == ["name  n"]
