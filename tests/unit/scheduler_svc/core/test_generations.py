"""Executors that connect: whose memory is whose, and weights that are not those being served."""

from __future__ import annotations

from scheduler_svc.core.events import (
    ExecutorConnected,
    ExecutorRegistered,
    LaneOpened,
    LaneRefused,
    Reply,
    RequestAborted,
)
from scheduler_svc.core.scheduler_config import SchedulerConfig
from segue.types import Capacity
from tests.factories import make_submission
from tests.traced_core import LANE, TracedCore

CONFIG = SchedulerConfig(async_scheduling=False)
OTHER = "e9"


def connect(core: TracedCore, executor_id: str, digest: str, incarnation_id: str = "i0") -> Reply:
    capacity = Capacity(1000, CONFIG.block_size)
    hello = ExecutorConnected(
        executor_id, incarnation_id, None, None, 0, capacity, 0, model_digest=digest
    )
    (reply,) = core.commit(ExecutorRegistered(executor_id, "nowhere"), hello)
    return reply


def test_lanes_are_of_one_model() -> None:
    core = TracedCore(None, CONFIG)
    assert isinstance(connect(core, LANE, "ours"), LaneOpened)
    refused = connect(core, OTHER, "theirs")
    assert isinstance(refused, LaneRefused)
    assert "theirs" in refused.reason
    assert "ours" in refused.reason
    assert isinstance(connect(core, OTHER, "ours"), LaneOpened)


def test_a_successor_knows_whose_model_it_is() -> None:
    core = TracedCore(None, CONFIG)
    connect(core, LANE, "ours")
    successor = TracedCore(None, CONFIG, predecessor=core)
    assert isinstance(connect(successor, OTHER, "theirs"), LaneRefused)


def test_an_executor_comes_back_with_another_model_once_no_text_is_half_done() -> None:
    core = TracedCore(None, CONFIG)
    connect(core, LANE, "ours")
    core.submit(make_submission("begun"))
    core.answer()
    assert core.core.state.requests["begun"].num_output_tokens
    assert isinstance(connect(core, LANE, "theirs", "i1"), LaneRefused)
    core.commit(RequestAborted("g0", "begun", "client_left", 0))
    assert isinstance(connect(core, LANE, "theirs", "i1"), LaneOpened)
    assert isinstance(connect(core, OTHER, "ours"), LaneRefused)


def test_who_does_not_say_is_taken() -> None:
    """An executor of a version that did not."""
    core = TracedCore(None, CONFIG)
    assert isinstance(connect(core, LANE, ""), LaneOpened)
    assert isinstance(connect(core, OTHER, "ours"), LaneOpened)
    assert isinstance(connect(core, "e10", ""), LaneOpened)
    assert isinstance(connect(core, "e11", "theirs"), LaneRefused)
