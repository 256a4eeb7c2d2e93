"""An end that Redis has lost and a gateway was told: nothing is run for it any more (H36)."""

from __future__ import annotations

import pytest

from scheduler_svc.core.engine_core import EngineCore
from scheduler_svc.core.events import RequestsSubmitted, SessionOpened, Tick
from scheduler_svc.core.request import Request
from scheduler_svc.core.scheduler_config import SchedulerConfig
from segue.types import Attachment, FinishReason
from tests.traced_core import TracedCore, now_ms, submission

GATEWAY = "g0"
TOKENS = (100, 101, 102, 103)


@pytest.fixture
def engine() -> TracedCore:
    config = SchedulerConfig(
        block_size=4, max_num_seqs=8, max_num_batched_tokens=64, max_model_len=64
    )
    engine = TracedCore(None, config)
    engine.connect()
    return engine


def running(engine: TracedCore, num_outputs: int) -> Request:
    """A request of four tokens, as Redis has it; its gateway has seen all of them and the end."""
    engine.submit(submission("r", max_tokens=len(TOKENS)))
    request = core_of(engine).state.requests["r"]
    while request.num_output_tokens < num_outputs:
        engine.answer()
    assert not request.is_finished
    return request


def core_of(engine: TracedCore) -> EngineCore:
    return engine.core


def hello(engine: TracedCore, *attachments: Attachment) -> list[object]:
    return list(engine.commit(SessionOpened(GATEWAY, attachments, 1)))


def test_a_name_is_free_again_in_the_commit_that_forgets_it(engine: TracedCore) -> None:
    running(engine, 2)
    engine.finish_all()
    later = now_ms() + 10**9
    again = RequestsSubmitted(GATEWAY, (submission("r", max_tokens=3),), (), later)
    engine.commit(Tick(later), again)
    assert core_of(engine).rows() == engine.rows
    engine.finish_all()
    assert core_of(engine).state.requests["r"].output_token_ids == list(TOKENS[:3])
    assert core_of(engine).rows() == engine.rows


def test_an_end_that_was_told_comes_back_with_its_rows(engine: TracedCore) -> None:
    request = running(engine, 2)
    replies = hello(engine, Attachment("r", TOKENS, is_finished=True))
    assert replies == []  # nobody waits for an answer, and no row may follow
    assert request.finish is not None
    assert request.finish.reason is FinishReason.LENGTH
    assert request.output_token_ids == list(TOKENS)
    engine.finish_all()
    assert not request.block_ids
    assert core_of(engine).rows() == engine.rows


def test_what_no_token_ended_ends_as_aborted(engine: TracedCore) -> None:
    """A stop string did, which the scheduler does not know."""
    request = running(engine, 3)
    seen = tuple(request.output_token_ids)
    hello(engine, Attachment("r", seen, is_finished=True))
    assert request.finish is not None
    assert request.finish.reason is FinishReason.ABORT
    assert tuple(request.output_token_ids) == seen


def test_whoever_has_the_request_now_goes_on(engine: TracedCore) -> None:
    request = running(engine, 2)
    request.owner = "g1"
    hello(engine, Attachment("r", TOKENS, is_finished=True))
    assert not request.is_finished


def test_an_end_that_is_known_stays_as_it_is(engine: TracedCore) -> None:
    request = running(engine, 2)
    engine.finish_all()
    finish = request.finish
    assert finish is not None
    replies = hello(
        engine,
        Attachment("r", TOKENS[:1], is_finished=True),
        Attachment("forgotten", TOKENS, is_finished=True),
    )
    assert replies == []
    assert request.finish == finish
