"""KV from elsewhere: blocks are held while they are written, and only valid ones are believed."""

from __future__ import annotations

from typing import Any

from scheduler_svc.core.request import Request, RequestStatus
from scheduler_svc.core.scheduler_config import SchedulerConfig
from scheduler_svc.core.stop_check import make_finish
from scheduler_svc.core.unified.scheduler import UnifiedScheduler
from segue.types import FinishReason
from tests.conformance.scripted_connector import ScriptedConnector
from tests.factories import LaneDriver, make_config, make_request

PROMPT = list(range(12))


class ConnectedLane(LaneDriver):
    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self.connector = ScriptedConnector()
        self.scheduler = UnifiedScheduler(
            "e0", config, self.requests, self.journal, connector=self.connector
        )

    def add_remote(self, num_tokens: int, *, is_async: bool = True) -> Request:
        request = make_request("a", PROMPT)
        remote = {"tokens": num_tokens, "async": is_async}
        self.connector.add({"id": "a", "remote": remote})
        self.add(request)
        return request

    def report(self, **kv: Any) -> None:
        """With the step that is planned and answered now."""
        self.plan()
        self.connector.report(kv)
        self.answer()


def test_a_load_holds_blocks_and_takes_no_slot() -> None:
    lane = ConnectedLane(make_config(max_num_seqs=1))
    request = lane.add_remote(12)
    lane.add(make_request("b"))
    assert list(lane.step().num_scheduled_tokens) == ["b"]
    assert request.status is RequestStatus.WAITING_FOR_REMOTE_KVS
    assert len(request.block_ids) == 3
    assert lane.scheduler.lane.kv.pool.num_cached_hashes == 0  # nothing of it is there yet


def test_a_whole_load_recomputes_the_last_token() -> None:
    lane = ConnectedLane(make_config())
    request = lane.add_remote(12)
    lane.report(finished_recving=["a"])
    plan = lane.step()
    assert plan.num_scheduled_tokens == {"a": 1}
    assert plan.scheduled_new_reqs[0].num_computed_tokens == 11
    assert request.num_registered_blocks == 3


def test_an_abort_while_loading_keeps_the_blocks_until_the_load_ends() -> None:
    """Else somebody else's block would be written."""
    lane = ConnectedLane(make_config())
    request = lane.add_remote(12)
    lane.step()
    lane.scheduler.finish_request(request, make_finish(request, FinishReason.ABORT), 0)
    assert lane.scheduler.num_free_blocks() == 29
    lane.report(finished_recving=["a"])
    assert lane.scheduler.num_free_blocks() == 32


def test_a_failed_load_goes_on_from_the_first_bad_block() -> None:
    lane = ConnectedLane(make_config())
    request = lane.add_remote(12)
    lane.step()
    lane.report(finished_recving=["a"], invalid_block_ids=[request.block_ids[1]])
    plan = lane.step()
    assert plan.num_scheduled_tokens == {"a": 8}
    assert plan.scheduled_new_reqs[0].num_computed_tokens == 4


def test_a_failed_load_inside_a_step_voids_its_row() -> None:
    lane = ConnectedLane(make_config())
    request = lane.add_remote(8, is_async=False)
    plan = lane.plan()
    assert plan.num_scheduled_tokens == {"a": 4}
    lane.connector.report({"invalid_block_ids": [request.block_ids[0]]})
    assert lane.answer() == {}
    assert request.output_token_ids == []
    assert lane.step().num_scheduled_tokens == {"a": 12}


def test_a_failed_load_ends_the_request_where_that_is_the_policy() -> None:
    lane = ConnectedLane(make_config(kv_load_failure_policy="fail"))
    request = lane.add_remote(8, is_async=False)
    lane.plan()
    lane.connector.report({"invalid_block_ids": [request.block_ids[0]]})
    finish = lane.answer()["a"]
    assert finish is not None
    assert finish.reason is FinishReason.ERROR
    assert lane.scheduler.lane.kv.pool.num_cached_hashes == 0


def test_blocks_to_be_sent_are_kept_until_they_were() -> None:
    lane = ConnectedLane(make_config())
    lane.connector.add({"id": "a", "send": True})
    lane.add(make_request("a", PROMPT, max_tokens=1))
    lane.step()
    assert lane.requests["a"].is_finished
    assert lane.scheduler.num_free_blocks() == 29
    lane.report(finished_sending=["a"])
    assert lane.scheduler.num_free_blocks() == 32


def test_frees_wait_for_the_step_in_flight_where_loads_may_overwrite() -> None:
    config = make_config(async_scheduling=True, defer_block_free=True)
    lane = ConnectedLane(config)
    request = make_request("a", PROMPT)
    lane.add(request)
    lane.plan()
    lane.plan()
    lane.scheduler.finish_request(request, make_finish(request, FinishReason.ABORT), 0)
    lane.answer()
    assert lane.scheduler.num_free_blocks() < 32
    lane.answer()
    assert lane.scheduler.num_free_blocks() == 32
