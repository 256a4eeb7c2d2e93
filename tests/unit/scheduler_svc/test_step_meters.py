"""What the leader counts of records that the hand model does not bring about: drafts, swaps."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_svc.config import SchedulerServiceConfig
from scheduler_svc.core.commit_record import CommitRecord, TakenResult
from scheduler_svc.core.engine_core import EngineCore
from scheduler_svc.core.events import RejectCode
from scheduler_svc.core.lane import Lane, PlannedStep
from scheduler_svc.core.request import Request
from scheduler_svc.policies import load_policy
from scheduler_svc.step_meters import StepMeters
from segue.instruments import Service
from segue.meters import Meters
from segue.types import (
    Finish,
    FinishReason,
    Generation,
    ModelRunnerOutput,
    NewRequestData,
    SchedulerOutput,
    Usage,
)
from segue.wire import WireCodec
from tests.factories import make_request, make_submission
from tests.metrics_page import Page

GENERATION = Generation(1, 1)


class Bench:
    """A core whose records are made by hand, and the meters that read them."""

    def __init__(self) -> None:
        config = SchedulerServiceConfig().engine_config()
        self.core = EngineCore(config, WireCodec(), load_policy("unified"))
        self.core.state.lanes["e0"] = Lane("e0", "")
        self.meters = Meters(Service.SCHEDULER, {"model_name": "m"})
        self.step_meters = StepMeters(self.meters, has_prefix_cache=True)

    def add(self, request: Request) -> Request:
        request.lane_id = "e0"
        self.core.state.requests[request.request_id] = request
        return request

    def commit(
        self, record: CommitRecord | None = None, plan: SchedulerOutput | None = None
    ) -> None:
        self.core.last_record = record or CommitRecord()
        self.core.last_plans = [] if plan is None else [("e0", PlannedStep(plan, b""))]
        self.step_meters.note_commit(self.core)

    def total(self, name: str, **labels: str) -> float:
        return Page.parse(self.meters.page().decode()).total(name, **labels)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def step(**fields: Any) -> SchedulerOutput:
    return SchedulerOutput(1, 1, GENERATION, **fields)


def taken(
    plan: SchedulerOutput,
    rows: dict[str, tuple[int, list[int]]],
    ends: dict[str, Finish] | None = None,
    **fields: Any,
) -> CommitRecord:
    """`rows`: request id -> (index of its first token, tokens)."""
    result = ModelRunnerOutput(
        plan.step_id,
        GENERATION,
        list(rows),
        [index for index, _ in rows.values()],
        [tokens for _, tokens in rows.values()],
        **fields,
    )
    outputs: dict[str, Finish | None] = dict.fromkeys(rows)
    return CommitRecord(results=[TakenResult("e0", plan, result, outputs | (ends or {}))])


def test_accepted_drafts_are_counted_by_position(bench: Bench) -> None:
    plan = step(draft_token_ids={"a": [1, 2, 3], "b": [1, 2, 3]})
    bench.commit(taken(plan, {"a": (4, [1, 2, 9]), "b": (1, [7]), "c": (2, [7])}))
    assert bench.total("vllm:spec_decode_num_drafts_total") == 2
    assert bench.total("vllm:spec_decode_num_draft_tokens_total") == 6
    assert bench.total("vllm:spec_decode_num_accepted_tokens_total") == 2
    per_position = [
        bench.total("vllm:spec_decode_num_accepted_tokens_per_pos_total", position=str(position))
        for position in range(3)
    ]
    assert per_position == [1, 1, 0]
    assert bench.total("segue:draft_accepted_tokens_sum") == 2
    assert bench.total("vllm:generation_tokens_total") == 5


def test_only_drafts_that_were_made_are_counted(bench: Bench) -> None:
    """A plan has room for them before it is known whether there is anything to propose."""
    plan = step(draft_token_ids={"a": [-1, -1, -1], "b": [-1, -1, -1]})
    rows = {"a": (4, [1, 9]), "b": (1, [7])}
    bench.commit(taken(plan, rows, num_verified_drafts=[2, 0]))
    assert bench.total("vllm:spec_decode_num_drafts_total") == 1
    assert bench.total("vllm:spec_decode_num_draft_tokens_total") == 2
    assert bench.total("vllm:spec_decode_num_accepted_tokens_total") == 1
    assert bench.total("vllm:generation_tokens_total") == 3


def test_tokens_behind_a_stop_were_not_generated(bench: Bench) -> None:
    """A request that ends at the second of four accepted tokens has two."""
    plan = step(draft_token_ids={"a": [1, 2, 3]})
    ended = Finish(FinishReason.STOP, Usage(3, 6))
    bench.commit(taken(plan, {"a": (4, [1, 2, 3, 9])}, {"a": ended}))
    assert bench.total("vllm:generation_tokens_total") == 2


def test_a_row_that_failed_has_no_token(bench: Bench) -> None:
    plan = step()
    bench.commit(taken(plan, {"a": (4, []), "b": (2, [7])}, row_errors={"a": "not numbers"}))
    assert bench.total("vllm:generation_tokens_total") == 1


def test_a_first_token_tells_what_of_the_prompt_was_computed(bench: Bench) -> None:
    request = bench.add(make_request("a", range(3, 13)))
    request.num_cached_tokens = 4
    bench.commit(taken(step(), {"a": (0, [7])}))
    bench.commit(taken(step(), {"a": (1, [7])}))
    assert bench.total("vllm:prompt_tokens_total") == 10
    assert bench.total("vllm:prompt_tokens_cached_total") == 4
    assert bench.total("vllm:prompt_tokens_by_source_total", source="local_compute") == 6
    assert bench.total("vllm:iteration_tokens_total_sum") == 7 + 1


def test_swaps_and_preemptions_are_the_plans(bench: Bench) -> None:
    bench.commit(plan=step(swap_out=[(1, 2), (3, 4)], preempted_req_ids=["a"]))
    bench.commit(plan=step(swap_in=[(2, 1)]))
    assert bench.total("segue:swapped_blocks_total", direction="out", engine="e0") == 2
    assert bench.total("segue:swapped_blocks_total", direction="in", engine="e0") == 1
    assert bench.total("vllm:num_preemptions_total", engine="e0") == 1


@pytest.mark.parametrize("skips", [True, False])
def test_who_does_not_read_the_cache_asks_nothing_of_it(bench: Bench, skips: bool) -> None:
    submission = make_submission("a", range(3, 13), skip_reading_prefix_cache=skips)
    request = bench.add(Request(submission, block_size=4))
    request.num_cached_tokens = 8
    params = submission.sampling_params
    new = NewRequestData("a", submission.prompt_token_ids, 10, 8, (1, 2, 3), params)
    bench.commit(plan=step(scheduled_new_reqs=[new]))
    assert bench.total("vllm:prefix_cache_queries_total") == (0 if skips else 10)
    assert bench.total("vllm:prefix_cache_hits_total") == (0 if skips else 8)


def test_a_request_of_an_earlier_leader_has_an_end_and_no_phases(bench: Bench) -> None:
    request = bench.add(make_request("a"))
    request.set_finished(Finish(FinishReason.ABORT, Usage(3, 1)), 1)
    bench.commit(CommitRecord(ended=[request]))
    assert bench.total("segue:requests_finished_total", finished_reason="abort") == 1
    assert bench.total("vllm:request_queue_time_seconds_count") == 0
    assert bench.total("vllm:request_num_preemptions_count") == 1


def test_a_full_queue_is_counted_under_vllms_reason(bench: Bench) -> None:
    for code in (RejectCode.QUEUE_FULL, RejectCode.TOO_LONG):
        bench.step_meters.note_rejection(code)
    assert bench.total("segue:requests_rejected_total") == 2
    reason = "max_num_queued_reqs"
    assert bench.total("vllm:admission_rejections_total", reason=reason) == 1
