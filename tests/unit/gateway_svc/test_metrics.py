"""What the gateway counts of what its ledger hears."""

from __future__ import annotations

import time

import pytest

from gateway_svc.api_error import queue_full
from gateway_svc.call import Call, CallKind, CallShape, request_id_of
from gateway_svc.ledger import Attaching, Ledger
from gateway_svc.live_call import LiveCall
from gateway_svc.metrics import GatewayMetrics
from gateway_svc.tokenizer import Tokenizer
from segue.model_files.hand import VOCAB_SIZE, write_hand_model
from segue.types import (
    Finish,
    FinishReason,
    OutputColumns,
    RequestOutput,
    SamplingParams,
    Submission,
    Usage,
)
from tests.metrics_page import Page

CALL_ID = "cmpl-1"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory = write_hand_model(tmp_path_factory.mktemp("hand"))
    return Tokenizer(directory / "tokenizer.json", VOCAB_SIZE)


class Counted:
    """A ledger that is observed, and what its page says."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.metrics = GatewayMetrics("m")
        self.ledger = Ledger(tokenizer, self.metrics)

    def add(self, num_choices: int = 1, stops: tuple[str, ...] = ()) -> LiveCall:
        live = LiveCall.new(make_call(num_choices, stops), self.tokenizer)
        self.ledger.add(live)
        return live

    def total(self, name: str, **labels: str) -> float:
        return Page.parse(self.metrics.render().decode()).total(name, **labels)


def make_call(num_choices: int, stops: tuple[str, ...] = ()) -> Call:
    shape = CallShape(CallKind.COMPLETION, "m", 0, num_choices, stops=stops)
    submissions = tuple(
        Submission(
            request_id_of(CALL_ID, index),
            (1, 2, 3),
            SamplingParams(seed=1, max_tokens=9),
            time.time_ns() // 1_000_000,
            choice=index,
            group_id=CALL_ID,
            client_context=shape.to_context(),
        )
        for index in range(num_choices)
    )
    return Call(CALL_ID, shape, submissions)


def rows(choice: int, first_index: int, text: bytes, *, ends: bool = False) -> RequestOutput:
    finish = Finish(FinishReason.LENGTH, Usage(3, first_index + len(text))) if ends else None
    return RequestOutput(request_id_of(CALL_ID, choice), first_index, tuple(text), finish=finish)


@pytest.fixture
def counted(tokenizer: Tokenizer) -> Counted:
    return Counted(tokenizer)


def test_tokens_that_come_again_are_counted_as_suppressed(counted: Counted) -> None:
    counted.add()
    counted.ledger.receive(OutputColumns.of([rows(0, 0, b"abc")]))
    counted.ledger.receive(OutputColumns.of([rows(0, 1, b"bcd")]))
    assert counted.total("segue:gateway_suppressed_duplicates_total") == 2


def test_gaps_are_between_messages_and_the_first_has_none(counted: Counted) -> None:
    counted.add(num_choices=3)
    for index in range(4):
        counted.ledger.receive(OutputColumns.of([rows(choice, index, b"a") for choice in range(3)]))
    assert counted.total("vllm:time_to_first_token_seconds_count") == 3
    assert counted.total("vllm:inter_token_latency_seconds_count") == 9


def test_the_choices_of_a_prompt_are_one_of_n(counted: Counted) -> None:
    counted.add(num_choices=2)
    counted.ledger.receive(OutputColumns.of([rows(0, 0, b"abc", ends=True)]))
    assert counted.total("vllm:request_params_n_count") == 0
    counted.ledger.receive(OutputColumns.of([rows(1, 0, b"abcde", ends=True)]))
    assert counted.total("vllm:request_params_n_sum") == 2
    assert counted.total("vllm:request_max_num_generation_tokens_sum") == 5
    assert counted.total("vllm:request_generation_tokens_sum") == 8
    assert counted.total("vllm:request_success_total", finished_reason="length") == 2


def test_a_stop_string_is_a_stop_and_is_counted_once(counted: Counted) -> None:
    counted.add(stops=("#",))
    counted.ledger.receive(OutputColumns.of([rows(0, 0, b"ab#c")]))
    aborted = Finish(FinishReason.ABORT, Usage(3, 5))
    counted.ledger.receive(
        OutputColumns.of([RequestOutput(request_id_of(CALL_ID, 0), 4, (65,), finish=aborted)])
    )
    assert counted.total("vllm:request_success_total", finished_reason="stop") == 1
    assert counted.total("vllm:request_success_total") == 1


@pytest.mark.parametrize("has_client", [True, False])
def test_a_refused_call_is_no_end_and_leaves_nothing(counted: Counted, has_client: bool) -> None:
    live = counted.add()
    if not has_client:
        counted.ledger.release(live, "the client left")
    counted.ledger.rejected(request_id_of(CALL_ID, 0), queue_full("the queue is full", 1))
    assert counted.total("vllm:request_success_total") == 0
    counted.add()  # the same prompt anew: nothing of the first is counted with it
    counted.ledger.receive(OutputColumns.of([rows(0, 0, b"a", ends=True)]))
    assert counted.total("vllm:request_params_n_sum") == 1


def test_a_call_that_another_gateway_began_has_an_end_and_no_first_token(counted: Counted) -> None:
    """That one has counted the first; its own end never came."""
    done: list[LiveCall | None] = []
    counted.ledger.attach(Attaching(CALL_ID, done.append))
    (submission,) = make_call(1).submissions
    counted.ledger.attached(submission)
    counted.ledger.receive(OutputColumns.of([rows(0, 0, b"abc")]))
    counted.ledger.receive(OutputColumns.of([rows(0, 3, b"d", ends=True)]))
    assert len(done) == 1
    assert counted.total("vllm:time_to_first_token_seconds_count") == 0
    assert counted.total("vllm:inter_token_latency_seconds_count") == 1
    assert counted.total("vllm:request_success_total", finished_reason="length") == 1
    assert counted.total("vllm:request_params_n_count") == 0
