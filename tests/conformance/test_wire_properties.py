"""Any value goes over the wire and comes back; the same value always gives the same bytes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from segue import wire
from segue.types import (
    Attachment,
    CachedRequestData,
    Finish,
    FinishReason,
    Generation,
    ModelRunnerOutput,
    NewRequestData,
    OutputColumns,
    RequestOutput,
    SamplingParams,
    SchedulerOutput,
    StepStats,
    StepTimings,
    Submission,
    TokenLogprobs,
    Usage,
)
from segue.v1 import executor_pb2, scheduler_pb2

uint32 = st.integers(0, 2**32 - 1)
uint64 = st.integers(0, 2**64 - 1)
tokens = st.integers(0, 2**31 - 1)
token_tuples = st.lists(tokens, max_size=6).map(tuple)
double = st.floats(allow_nan=False)
single = st.floats(width=32, allow_nan=False)
names = st.text(max_size=8)
generations = st.builds(Generation, uint64, uint64)
token_logprobs = st.lists(st.tuples(tokens, single), max_size=3).flatmap(
    lambda top: st.builds(
        TokenLogprobs,
        single,
        st.just(tuple(token for token, _ in top)),
        st.just(tuple(value for _, value in top)),
    )
)
sampling_params = st.builds(
    SamplingParams,
    seed=uint64,
    max_tokens=uint32,
    min_tokens=uint32,
    temperature=double,
    top_k=uint32,
    top_p=double,
    min_p=double,
    presence_penalty=double,
    frequency_penalty=double,
    repetition_penalty=double,
    logit_bias=st.lists(st.tuples(tokens, double), max_size=3).map(tuple),
    eos_token_id=st.none() | tokens,
    stop_token_ids=token_tuples,
    num_logprobs=st.none() | uint32,
)
submissions = st.builds(
    Submission,
    request_id=names,
    prompt_token_ids=token_tuples,
    sampling_params=sampling_params,
    arrival_unix_ms=uint64,
    choice=uint32,
    group_id=names,
    group_size=uint32,
    priority=st.integers(-(2**31), 2**31 - 1),
    cache_salt=names,
    adapter=names,
    traceparent=names,
    client_context=names,
    skip_reading_prefix_cache=st.booleans(),
    is_resumable=st.booleans(),
)
finishes = st.builds(
    Finish,
    st.sampled_from(FinishReason),
    st.builds(Usage, uint32, uint32, uint32),
    st.none() | tokens,
    names,
)


@st.composite
def plans(draw: st.DrawFn) -> SchedulerOutput:
    request_ids = draw(st.lists(names, unique=True, max_size=6))
    subset = st.lists(st.sampled_from(request_ids), unique=True) if request_ids else st.just([])
    cached = draw(subset)
    new_requests = st.builds(
        NewRequestData,
        names,
        token_tuples,
        uint32,
        uint32,
        token_tuples,
        sampling_params,
        uint32,
        names,
    )
    block_pairs = st.lists(st.tuples(uint32, uint32), max_size=3)
    drafts = st.lists(st.integers(-1, 2**31 - 1), min_size=1, max_size=3)
    return SchedulerOutput(
        step_id=draw(uint64),
        epoch=draw(uint64),
        generation=draw(generations),
        scheduled_new_reqs=draw(st.lists(new_requests, max_size=2)),
        scheduled_resumed_reqs=draw(st.lists(new_requests, max_size=2)),
        scheduled_cached_reqs=CachedRequestData(
            cached, [draw(token_tuples) for _ in cached], [draw(uint32) for _ in cached]
        ),
        num_scheduled_tokens={request_id: draw(uint32) for request_id in request_ids},
        output_indices={request_id: draw(uint32) for request_id in draw(subset)},
        draft_token_ids={request_id: draw(drafts) for request_id in draw(subset)},
        preempted_req_ids=draw(st.lists(names, max_size=3)),
        finished_req_ids=draw(st.lists(names, max_size=3)),
        swap_out=draw(block_pairs),
        swap_in=draw(block_pairs),
        copies=draw(block_pairs),
        num_lookahead_slots=draw(uint32),
        traceparent=draw(names),
        stats=draw(st.builds(StepStats, uint32, uint32, uint32, uint32, uint32, uint32)),
    )


@st.composite
def results(draw: st.DrawFn) -> ModelRunnerOutput:
    request_ids = draw(st.lists(names, unique=True, max_size=6))
    subset = st.lists(st.sampled_from(request_ids), unique=True) if request_ids else st.just([])
    return ModelRunnerOutput(
        step_id=draw(uint64),
        generation=draw(generations),
        request_ids=request_ids,
        first_output_indices=[draw(uint32) for _ in request_ids],
        sampled_token_ids=[list(draw(token_tuples)) for _ in request_ids],
        logprobs={i: draw(st.lists(token_logprobs, max_size=3)) for i in draw(subset)},
        draft_token_ids={i: list(draw(token_tuples)) for i in draw(subset)},
        row_errors={i: draw(names) for i in draw(st.lists(names, unique=True, max_size=2))},
        timings=draw(st.builds(StepTimings, uint64, uint64, uint64, uint64)),
        num_verified_drafts=[draw(uint32) for _ in request_ids],
    )


@given(plans())
@settings(deadline=None)
def test_plans_round_trip(plan: SchedulerOutput) -> None:
    body = wire.encode_step(plan)
    decoded = wire.decode_step(body)
    assert decoded == plan
    assert list(decoded.num_scheduled_tokens) == list(plan.num_scheduled_tokens)
    assert wire.encode_step(decoded) == body


@given(results())
@settings(deadline=None)
def test_results_round_trip(result: ModelRunnerOutput) -> None:
    body = wire.step_result_to_proto(result).SerializeToString()
    decoded = wire.step_result_from_proto(executor_pb2.ModelRunnerOutput.FromString(body))
    assert decoded == result


@given(submissions)
@settings(deadline=None)
def test_submissions_round_trip(submission: Submission) -> None:
    body = wire.encode_submission(submission)
    assert wire.decode_submission(body) == submission
    assert wire.encode_submission(wire.decode_submission(body)) == body


@given(st.lists(token_logprobs, max_size=4), st.lists(token_logprobs, max_size=4))
@settings(deadline=None)
def test_logprobs_round_trip_and_append(
    first: list[TokenLogprobs], second: list[TokenLogprobs]
) -> None:
    """Bytes put one after the other decode to both runs, so rows of output may be appended."""
    assert wire.decode_logprobs(wire.encode_logprobs(first)) == first
    both = wire.encode_logprobs(first) + wire.encode_logprobs(second)
    assert wire.decode_logprobs(both) == first + second


@given(
    st.lists(
        st.builds(
            RequestOutput,
            names,
            uint32,
            token_tuples,
            st.lists(token_logprobs, max_size=3).map(tuple),
            st.none() | finishes,
            uint32,
        ),
        max_size=5,
    )
)
@settings(deadline=None)
def test_outputs_round_trip(outputs: list[RequestOutput]) -> None:
    body = wire.outputs_to_proto(4, 99, OutputColumns.of(outputs)).SerializeToString()
    received = scheduler_pb2.Outputs.FromString(body)
    assert (received.epoch, received.commit_seq) == (4, 99)
    assert list(wire.outputs_from_proto(received)) == outputs


@given(
    st.builds(
        Attachment,
        names,
        token_tuples,
        st.lists(token_logprobs, max_size=3).map(tuple),
        st.booleans(),
    )
)
@settings(deadline=None)
def test_attachments_round_trip(attachment: Attachment) -> None:
    body = wire.attachment_to_proto(attachment).SerializeToString()
    assert wire.attachment_from_proto(scheduler_pb2.Attachment.FromString(body)) == attachment
