"""What `segue state` prints of a lane that swaps, and of requests with drafts."""

from __future__ import annotations

from typing import Any

from segue.commands.state import state_text
from segue.commands.stored_state import QUEUES, JsonObject, StoredState, request_columns

RUNNING = "RUNNING|e0|g0|1|8|0|0|0|0|0|0|0|0|0|0|-1,-1,-1||"
SWAPPED = "SWAPPED|e0|g0|1|0|0|0|0|0|1|0|0|0|0|0|||"


def lane(**changes: Any) -> JsonObject:
    queues: JsonObject = {queue: [] for queue in QUEUES}
    rows: JsonObject = {"tables": {"a": ["1", "2"]}, "blocks": {}, "steps": [7], "policy": None}
    return {"status": "active", "capacity": [20, 16, 30, 0, 0]} | queues | rows | changes


def stored(lane_row: JsonObject, **requests: str) -> StoredState:
    rows = {name: request_columns(row) | {"num_output_tokens": 5} for name, row in requests.items()}
    return StoredState({}, {}, rows, {"e0": lane_row}, [], [])


def cells(text: str, *starts: str) -> list[str]:
    """Of the last line that begins like this."""
    return [line for line in text.splitlines() if line.startswith(starts)][-1].split()


def test_drafts_are_counted() -> None:
    text = state_text(stored(lane(), a=RUNNING, b=SWAPPED))
    column = cells(text, "request").index("drafts")
    assert [cells(text, name)[column] for name in ("a", "b")] == ["3", "0"]


def test_blocks_of_who_is_swapped_out_are_the_cpus() -> None:
    policy = {"cpu_tables": {"b": [4, 9]}}
    text = state_text(stored(lane(swapped=["b"], policy=policy), a=RUNNING, b=SWAPPED))
    tables = text.partition("BLOCK TABLES")[2].partition("REQUESTS")[0]
    assert cells(tables, "a ") == ["a", "2", "1", "2"]
    assert cells(tables, "b ") == ["b", "2", "CPU:", "4", "9"]
