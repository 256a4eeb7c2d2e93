"""What goes over the wire comes back as it was, and every field goes over the wire."""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from typing import Any

import pytest
from google.protobuf.message import Message

from segue import wire
from segue.types import (
    Attachment,
    CachedRequestData,
    Capacity,
    Finish,
    FinishReason,
    Generation,
    ModelRunnerOutput,
    NewRequestData,
    OutputColumns,
    RequestOutput,
    SamplingParams,
    SchedulerOutput,
    StepKey,
    StepStats,
    StepTimings,
    Submission,
    TokenLogprobs,
    Usage,
)
from segue.v1 import executor_pb2, scheduler_pb2, types_pb2

GENERATION = Generation(epoch=3, number=8)
PARAMS = SamplingParams(
    seed=2**64 - 1,
    max_tokens=50,
    min_tokens=2,
    temperature=0.1,
    top_k=40,
    top_p=0.95,
    min_p=0.05,
    presence_penalty=-0.5,
    frequency_penalty=0.25,
    repetition_penalty=1.1,
    logit_bias=((7, -100.0), (9, 0.1)),
    eos_token_id=257,
    stop_token_ids=(1, 2),
    num_logprobs=2,
)
LOGPROBS = (TokenLogprobs(-0.5, (4, 5), (-0.5, -1.5)), TokenLogprobs(-2.0))
NEW = NewRequestData("new", (1, 2, 3), 2, 1, (10, 11), PARAMS, choice=1, adapter="lora")
RESUMED = NewRequestData("resumed", (1, 2, 3), 2, 1, (12,), PARAMS, choice=2, adapter="other")
SUBMISSION = Submission(
    request_id="r",
    prompt_token_ids=(1, 2, 3),
    sampling_params=PARAMS,
    arrival_unix_ms=1_700_000_000_000,
    choice=1,
    group_id="g",
    group_size=2,
    priority=-3,
    cache_salt="salt",
    adapter="lora",
    traceparent="00-ab-cd-01",
    client_context='{"model": "m"}',
    skip_reading_prefix_cache=True,
    is_resumable=True,
)
PLAN = SchedulerOutput(
    step_id=17,
    epoch=4,
    generation=GENERATION,
    scheduled_new_reqs=[NEW],
    scheduled_resumed_reqs=[RESUMED],
    scheduled_cached_reqs=CachedRequestData(["b", "a"], [(20, 21), ()], [16, 5]),
    num_scheduled_tokens={"b": 1, "a": 4, "resumed": 2, "new": 2},
    output_indices={"b": 0, "new": 7},
    draft_token_ids={"a": [5, -1, 6]},
    preempted_req_ids=["p"],
    finished_req_ids=["f", "e"],
    swap_out=[(1, 2), (3, 4)],
    swap_in=[(5, 6)],
    copies=[(7, 8)],
    num_lookahead_slots=3,
    traceparent="00-12-34-01",
    stats=StepStats(1, 2, 3, 4, 5, 6),
)
RESULT = ModelRunnerOutput(
    step_id=17,
    generation=GENERATION,
    request_ids=["b", "a"],
    first_output_indices=[3, 4],
    sampled_token_ids=[[1, 2], [3]],
    logprobs={"b": list(LOGPROBS)},
    draft_token_ids={"a": [9, 8]},
    row_errors={"c": "NaN"},
    timings=StepTimings(1, 2, 3, 4),
    num_verified_drafts=[3, 0],
)
FINISH = Finish(FinishReason.LENGTH, Usage(3, 4, 2), stop_reason=0, message="why")
OUTPUT = RequestOutput("r", 2, (5, 6), LOGPROBS, FINISH, num_cached_tokens=16)
ATTACHMENT = Attachment("r", (5, 6), LOGPROBS, is_finished=True)


def outputs_through(outputs: list[RequestOutput]) -> list[RequestOutput]:
    message = wire.outputs_to_proto(4, 99, OutputColumns.of(outputs))
    received = scheduler_pb2.Outputs.FromString(message.SerializeToString())
    assert received.epoch == 4
    assert received.commit_seq == 99
    return list(wire.outputs_from_proto(received))


def result_through(result: ModelRunnerOutput) -> ModelRunnerOutput:
    body = wire.step_result_to_proto(result).SerializeToString()
    return wire.step_result_from_proto(executor_pb2.ModelRunnerOutput.FromString(body))


def attachment_through(attachment: Attachment) -> Attachment:
    body = wire.attachment_to_proto(attachment).SerializeToString()
    return wire.attachment_from_proto(scheduler_pb2.Attachment.FromString(body))


def _no_message() -> types_pb2.StepKey:
    raise AssertionError("a key that is there has a message")


CASES: list[tuple[Any, Any]] = [
    (PLAN, lambda value: wire.decode_step(wire.encode_step(value))),
    (SUBMISSION, lambda value: wire.decode_submission(wire.encode_submission(value))),
    (RESULT, result_through),
    (OUTPUT, lambda value: outputs_through([value])[0]),
    (ATTACHMENT, attachment_through),
    (
        Capacity(100, 16, 10, 4096, 259),
        lambda value: wire.capacity_from_proto(wire.capacity_to_proto(value)),
    ),
    (
        StepKey(5, 6),
        lambda value: wire.step_key_from_proto(wire.step_key_to_proto(value) or _no_message()),
    ),
]
CASE_IDS = [type(value).__name__ for value, _ in CASES]


@pytest.mark.parametrize("value, through", CASES, ids=CASE_IDS)
def test_full_value_round_trips(value: Any, through: Any) -> None:
    assert through(value) == value


def default_fields(value: Any, path: str) -> list[str]:
    """The fields of a value, and of the values in it, that still hold their default."""
    if isinstance(value, (list, tuple)):
        found = [default_fields(item, f"{path}[{i}]") for i, item in enumerate(value)]
        return [] if not found else min(found, key=len)
    if not is_dataclass(value):
        return []
    names: list[str] = []
    for one in fields(value):
        here = getattr(value, one.name)
        made = one.default_factory() if one.default_factory is not MISSING else one.default
        if here == made:
            names.append(f"{path}.{one.name}")
        names += default_fields(here, f"{path}.{one.name}")
    return names


@pytest.mark.parametrize("value, through", CASES, ids=CASE_IDS)
def test_every_field_of_a_value_is_tried(value: Any, through: Any) -> None:
    """A field that is added to segue/types.py fails here until the cases above carry it."""
    assert default_fields(value, type(value).__name__) == []


def unset_fields(message: Message) -> list[str]:
    """Fields that nothing was written to, in the message and in at least one of each kind in it."""
    unset = {field.full_name for field in message.DESCRIPTOR.fields}
    for field, value in message.ListFields():
        unset.discard(field.full_name)
        if field.message_type is not None:
            inner = list(value) if field.is_repeated else [value]
            unset |= set.intersection(*(set(unset_fields(one)) for one in inner))
    return sorted(unset)


@pytest.mark.parametrize(
    "message",
    [
        wire.step_to_proto(PLAN),
        wire.submission_to_proto(SUBMISSION),
        wire.step_result_to_proto(RESULT),
        wire.outputs_to_proto(4, 99, OutputColumns.of([OUTPUT, OUTPUT])),
        wire.attachment_to_proto(ATTACHMENT),
        wire.capacity_to_proto(Capacity(100, 16, 10, 4096, 259)),
    ],
    ids=lambda message: message.DESCRIPTOR.name,
)
def test_every_field_of_a_message_is_written(message: Message) -> None:
    """A field that is added to the protos fails here until the wire writes it."""
    assert unset_fields(message) == []


def test_finish_reasons_all_travel() -> None:
    for reason in FinishReason:
        finish = Finish(reason, Usage(1, 2))
        assert wire.finish_from_proto(wire.finish_to_proto(finish)) == finish


def test_stored_bytes_are_the_request_that_is_sent() -> None:
    """The executor reads a step from the stream exactly as Redis holds it."""
    request = executor_pb2.ExecuteRequest.FromString(wire.encode_step(PLAN))
    assert request.WhichOneof("message") == "step"
    assert wire.step_from_proto(request.step) == PLAN


def test_codec_is_the_same_encoding() -> None:
    """The store's bytes and the stream's bytes have one author."""
    codec = wire.WireCodec()
    assert codec.decode_step(codec.encode_step(PLAN)) == PLAN
    assert codec.encode_step(PLAN) == wire.encode_step(PLAN)
    assert codec.decode_submission(codec.encode_submission(SUBMISSION)) == SUBMISSION
    assert codec.decode_logprobs(codec.encode_logprobs(list(LOGPROBS))) == list(LOGPROBS)


def test_decided_order_survives() -> None:
    """Row order decides which request gets the last tokens of a budget; dict equality hides it."""
    decoded = wire.decode_step(wire.encode_step(PLAN))
    assert list(decoded.num_scheduled_tokens) == ["b", "a", "resumed", "new"]


def test_empty_plan_is_small() -> None:
    plan = SchedulerOutput(1, 1, GENERATION)
    assert wire.decode_step(wire.encode_step(plan)) == plan
    assert len(wire.encode_step(plan)) < 20


def test_absent_is_none() -> None:
    assert wire.generation_to_proto(None) is None
    assert wire.step_key_to_proto(None) is None
    assert not executor_pb2.ExecutorHelloAck(generation=None).HasField("generation")


def test_shifted_columns_are_refused() -> None:
    """A column that lacks an entry would hand one request's tokens to another."""
    result = wire.step_result_to_proto(RESULT)
    result.num_tokens[0] -= 1
    with pytest.raises(ValueError, match="lengths"):
        wire.step_result_from_proto(result)
    plan = wire.step_to_proto(PLAN)
    plan.num_scheduled_tokens.append(1)
    with pytest.raises(ValueError):
        wire.step_from_proto(plan)
    outputs = wire.outputs_to_proto(4, 99, OutputColumns.of([OUTPUT]))
    outputs.token_ids.append(1)
    with pytest.raises(ValueError, match="lengths"):
        wire.outputs_from_proto(outputs)
    outputs.token_ids.pop()
    outputs.first_indices.append(1)
    with pytest.raises(ValueError, match="length"):
        wire.outputs_from_proto(outputs)
    logprobs = wire.logprobs_to_proto(LOGPROBS)
    logprobs.top_logprobs.append(0.0)
    with pytest.raises(ValueError, match="length"):
        wire.logprobs_from_proto(logprobs)


@pytest.mark.parametrize("value", [-1, 2**32])
def test_what_does_not_fit_is_refused(value: int) -> None:
    with pytest.raises(ValueError):
        wire.encode_submission(Submission("r", (value,), PARAMS, 1))


def test_unknown_fields_of_a_newer_peer_are_ignored() -> None:
    """A rolling update: the other side may already send a field that this one does not know."""
    message = types_pb2.Generation.FromString(b"\x08\x03\x10\x08" + b"\xf8\x07\x01")
    assert wire.generation_from_proto(message) == GENERATION
