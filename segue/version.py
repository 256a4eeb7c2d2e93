"""The version of Segue, and of what it keeps; nothing else knows a version number."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.1.0"

# Of the rows in Redis (docs/state.md). Of an older one, down to the oldest, requests and their
# output are read; a newer one is refused.
STATE_SCHEMA_VERSION: Final = 3
OLDEST_STATE_SCHEMA_VERSION: Final = 1
