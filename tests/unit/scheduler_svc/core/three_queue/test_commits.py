"""What a step of `three_queue` stores: of a decode its token, and a table where it has grown."""

from __future__ import annotations

from scheduler_svc.core.events import ModelOutputReceived
from scheduler_svc.core.rows import Delta, Key, Table
from segue.types import Capacity, ModelRunnerOutput
from tests.three_queue_lane import make_v0_config
from tests.traced_core import LANE, TracedCore, submission

BLOCK_SIZE = 4
OF_REQUESTS = (Table.REQUESTS, Table.LANE_TABLES)


def decode(traced: TracedCore) -> Delta:
    """The delta of the commit that takes a step's one token and plans the next step."""
    (plan,) = traced.in_flight()
    ((request_id, index),) = plan.output_indices.items()
    result = ModelRunnerOutput(plan.step_id, plan.generation, [request_id], [index], [[7]])
    traced.core.handle(ModelOutputReceived(LANE, result, 0))
    traced.core.plan([LANE])
    return traced.core.take_commit(0).delta


def test_a_decode_stores_its_token_and_every_fourth_a_table() -> None:
    traced = TracedCore(
        None, make_v0_config(block_size=BLOCK_SIZE), capacity=Capacity(32, BLOCK_SIZE)
    )
    traced.connect()
    traced.submit(submission("r", num_prompt=6, max_tokens=20))
    decode(traced)  # the prompt's step had six tokens in flight, which the row tells
    tables: list[bytes] = []
    for index in range(1, 9):
        delta = decode(traced)
        assert delta.outputs == {"r": (4 * index, b"\x07\0\0\0")}
        changed = {key: rows for key, rows in delta.fields.items() if key.table in OF_REQUESTS}
        assert changed.keys() <= {Key(Table.LANE_TABLES, LANE)}
        tables += [rows["r"] for rows in changed.values()]
    assert tables == [b"0 1 2", b"0 1 2 3"]
