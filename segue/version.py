"""The version of Segue, and of what it keeps; nothing else knows a version number."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.1.0"

# Of the rows in Redis (docs/state.md): another number is another format, which nothing reads.
STATE_SCHEMA_VERSION: Final = 1
