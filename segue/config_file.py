"""Reads a configuration file: YAML, one flag's name a line, with dashes or underscores.

Knows which names it may hold, and no type. Invariant: what is in the file is used or refused by
name; nothing in it is passed over.
"""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches
from pathlib import Path
from typing import cast

Scalar = str | bool


class BadConfigFile(Exception):
    """The message is one readable line."""


def read_config_file(path: Path, names: Collection[str]) -> dict[str, Scalar]:
    """Values by field name: a bool where YAML has one, else what the flag would be given."""
    import yaml  # only who is given a file needs it

    try:
        text = path.read_text(encoding="utf-8")
        content: object = yaml.safe_load(text)
        root = cast("object", yaml.compose(text, yaml.SafeLoader))  # pyright: ignore[reportUnknownMemberType]
    except OSError as error:
        raise BadConfigFile(f"--config {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        text = " ".join(str(error).split())
        raise BadConfigFile(f"--config {path}: it is no YAML: {text}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise BadConfigFile(f"--config {path}: one `name: value` a line is wanted")
    assert isinstance(root, yaml.MappingNode)
    keys = [str(key.value) for key, _ in root.value]  # here, one that is there twice is there twice
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise BadConfigFile(f"--config {path}: {twice} is there twice")
    values: dict[str, Scalar] = {}
    for key, value in cast("dict[object, object]", content).items():
        name = str(key).replace("-", "_")
        if name not in names:
            raise BadConfigFile(f"--config {path}: unknown key {key}{_advice(name, names)}")
        if name in values:
            raise BadConfigFile(f"--config {path}: {key} is there twice")
        values[name] = _scalar(path, str(key), value)
    return values


def _scalar(path: Path, key: str, value: object) -> Scalar:
    if isinstance(value, list):
        parts = cast("list[object]", value)
        return ",".join(str(_scalar(path, key, part)) for part in parts)
    if isinstance(value, str | bool):
        return value
    if isinstance(value, int | float):
        return str(value)
    raise BadConfigFile(f"--config {path}: {key} has no value that a flag could have")


def _advice(name: str, names: Collection[str]) -> str:
    close = get_close_matches(name, names, n=1)
    return f"; did you mean {close[0].replace('_', '-')}?" if close else ""
