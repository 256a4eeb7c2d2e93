"""What a client of a stream has seen, and how it would ask to go on.

Knows server-sent events and the shape of a completion's chunks. Invariant: an error in the stream
fails the test.
"""

from __future__ import annotations

import json
from typing import Any


class Events:
    """The text and the last event id of a stream of server-sent events."""

    def __init__(self) -> None:
        self.text = ""
        self.last_id = ""
        self.finish_reason: str | None = None
        self.is_done = False

    def take(self, line: str) -> None:
        if line.startswith("id: "):
            self.last_id = line[4:]
        elif line == "data: [DONE]":
            self.is_done = True
        elif line.startswith("data: "):
            chunk: dict[str, Any] = json.loads(line[6:])
            assert "error" not in chunk, chunk
            for choice in chunk["choices"]:
                self.text += choice["text"]
                self.finish_reason = choice["finish_reason"] or self.finish_reason
