"""Messages as services of an earlier protocol version sent them are read by today's.

`recorded/messages_v1.jsonl` was written by `python -m tests.message_recording` when version 1 was
the newest, and is never written again: where this fails, an executor or a gateway that has not been
upgraded yet would be misread.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from segue.wire import PROTOCOL_VERSION
from tests.message_recording import as_dict, message_classes

RECORDED = sorted((Path(__file__).parent / "recorded").glob("messages_v*.jsonl"))


def recorded(path: Path) -> list[tuple[str, bytes, dict[str, Any]]]:
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [(name, bytes.fromhex(data), told) for name, data, told in lines]


def test_each_version_is_recorded() -> None:
    versions = {path.stem for path in RECORDED}
    assert versions == {f"messages_v{number}" for number in range(1, PROTOCOL_VERSION + 1)}


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_what_was_sent_is_read_as_it_was_meant(path: Path) -> None:
    messages = recorded(path)
    assert len(messages) > 30
    classes = message_classes()
    for name, data, told in messages:
        message = classes[name].FromString(data)
        assert as_dict(message) == told, name


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_fields_that_were_not_known_then_may_be_missing(path: Path) -> None:
    """And those of a newer version are passed over: here, a field of a number nobody uses."""
    unknown = bytes([0xFA, 0x3F, 1, 0])  # field 1023, one byte
    for name, data, told in recorded(path):
        assert as_dict(message_classes()[name].FromString(data + unknown)) == told, name
