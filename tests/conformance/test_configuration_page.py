"""docs/configuration.md is what the dataclasses say, and each of their settings is on it."""

from __future__ import annotations

from dataclasses import fields

from scripts.write_configuration_page import SECTIONS, TARGET, page


def test_it_is_current() -> None:
    assert TARGET.read_text(encoding="utf-8") == page(), "run `make docs`"


def test_each_setting_is_told() -> None:
    text = page()
    for _, cls in SECTIONS:
        for one in fields(cls):
            assert one.metadata.get("help"), f"{cls.__name__}.{one.name} has no help"
            assert f"`--{one.name.replace('_', '-')}`" in text
