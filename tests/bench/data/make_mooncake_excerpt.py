"""Makes `mooncake_conversation_turns.jsonl.gz` of the whole trace: long conversations alone.

`python tests/bench/data/make_mooncake_excerpt.py TRACE`. Knows hash ids, no text. Invariant: what
is kept is as it was recorded, in its order; times count from the first request that is kept.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

MIN_TURNS = 8
NUM_REQUESTS = 100
EXCERPT = Path(__file__).parent / "mooncake_conversation_turns.jsonl.gz"


def conversation(row: dict[str, Any]) -> int:
    """Nearly all share the first block; the second tells conversations apart."""
    return row["hash_ids"][min(1, len(row["hash_ids"]) - 1)]


def excerpt(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    turns = Counter(map(conversation, rows))
    kept = [row for row in rows if turns[conversation(row)] >= MIN_TURNS][:NUM_REQUESTS]
    return [row | {"timestamp": row["timestamp"] - kept[0]["timestamp"]} for row in kept]


def main() -> None:
    with gzip.open(sys.argv[1], "rt") as trace:
        rows = [json.loads(line) for line in trace]
    text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in excerpt(rows))
    EXCERPT.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main()
