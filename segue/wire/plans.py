"""A step's plan as the message that is stored and sent: columns over the scheduled requests.

Knows nothing about who plans or runs it. Invariant: the decided order of `num_scheduled_tokens` is
the order of the columns; a request without drafts is absent from `draft_token_ids`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from segue.types import CachedRequestData, NewRequestData, SchedulerOutput, StepStats
from segue.v1 import executor_pb2
from segue.wire.columns import flatten, pairs, split
from segue.wire.identities import generation_from_proto, generation_to_proto
from segue.wire.requests import sampling_params_from_proto, sampling_params_to_proto


def encode_step(plan: SchedulerOutput) -> bytes:
    """The serialised ExecuteRequest: what is stored is what goes over the stream."""
    return executor_pb2.ExecuteRequest(step=step_to_proto(plan)).SerializeToString()


def decode_step(body: bytes) -> SchedulerOutput:
    return step_from_proto(executor_pb2.ExecuteRequest.FromString(body).step)


def step_to_proto(plan: SchedulerOutput) -> executor_pb2.SchedulerOutput:
    assert plan.output_indices.keys() <= plan.num_scheduled_tokens.keys()
    assert plan.draft_token_ids.keys() <= plan.num_scheduled_tokens.keys()
    request_ids = list(plan.num_scheduled_tokens)
    cached = plan.scheduled_cached_reqs
    is_sampled, output_indices = _sampled_columns(plan, request_ids)
    message = executor_pb2.SchedulerOutput(
        step_id=plan.step_id,
        epoch=plan.epoch,
        generation=generation_to_proto(plan.generation),
        request_ids=request_ids,
        num_scheduled_tokens=plan.num_scheduled_tokens.values(),
        is_sampled=is_sampled,
        output_indices=output_indices,
        num_computed_tokens=cached.num_computed_tokens,
        num_new_blocks=list(map(len, cached.new_block_ids)),
        new_block_ids=flatten(cached.new_block_ids),
        new_requests=_new_requests_to_proto(plan),
        preempted_request_ids=plan.preempted_req_ids,
        finished_request_ids=plan.finished_req_ids,
        swap_out=flatten(plan.swap_out),
        swap_in=flatten(plan.swap_in),
        copies=flatten(plan.copies),
        num_lookahead_slots=plan.num_lookahead_slots,
        traceparent=plan.traceparent,
        stats=_stats_to_proto(plan.stats),
    )
    if cached.request_ids:
        message.cached_request_rows.extend(_rows_of(cached.request_ids, request_ids))
    if plan.draft_token_ids:
        drafts = [plan.draft_token_ids.get(request_id, []) for request_id in request_ids]
        message.num_draft_tokens.extend([len(tokens) for tokens in drafts])
        message.draft_token_ids.extend(flatten(drafts))
    return message


def _sampled_columns(plan: SchedulerOutput, request_ids: list[str]) -> tuple[list[bool], list[int]]:
    """Whether each request samples, and at which index; all do in a step that only decodes."""
    indices = plan.output_indices
    if len(indices) == len(request_ids):
        return [True] * len(request_ids), list(map(indices.__getitem__, request_ids))
    is_sampled = [request_id in indices for request_id in request_ids]
    return is_sampled, [indices.get(request_id, 0) for request_id in request_ids]


def _rows_of(some_ids: list[str], request_ids: list[str]) -> Sequence[int]:
    """Running requests come first, in this order, unless a rule has passed one over."""
    if request_ids[: len(some_ids)] == some_ids:
        return range(len(some_ids))
    row_of = {request_id: row for row, request_id in enumerate(request_ids)}
    return [row_of[request_id] for request_id in some_ids]


def step_from_proto(message: executor_pb2.SchedulerOutput) -> SchedulerOutput:
    request_ids = list(message.request_ids)
    new, resumed = _new_requests_from_proto(message.new_requests)
    drafts = split(list(message.draft_token_ids), message.num_draft_tokens)
    indices = zip(request_ids, message.is_sampled, message.output_indices, strict=True)
    return SchedulerOutput(
        step_id=message.step_id,
        epoch=message.epoch,
        generation=generation_from_proto(message.generation),
        scheduled_new_reqs=new,
        scheduled_resumed_reqs=resumed,
        scheduled_cached_reqs=_cached_from_proto(message, request_ids),
        num_scheduled_tokens=dict(zip(request_ids, message.num_scheduled_tokens, strict=True)),
        output_indices={request_id: index for request_id, sampled, index in indices if sampled},
        draft_token_ids={
            request_id: tokens
            for request_id, tokens in zip(request_ids if drafts else [], drafts, strict=True)
            if tokens
        },
        preempted_req_ids=list(message.preempted_request_ids),
        finished_req_ids=list(message.finished_request_ids),
        swap_out=pairs(list(message.swap_out)),
        swap_in=pairs(list(message.swap_in)),
        copies=pairs(list(message.copies)),
        num_lookahead_slots=message.num_lookahead_slots,
        traceparent=message.traceparent,
        stats=_stats_from_proto(message.stats),
    )


def _cached_from_proto(
    message: executor_pb2.SchedulerOutput, request_ids: list[str]
) -> CachedRequestData:
    rows = list(message.cached_request_rows)
    new_block_ids = split(list(message.new_block_ids), message.num_new_blocks)
    if not len(rows) == len(message.num_computed_tokens) == len(new_block_ids):
        raise ValueError("the columns of a step's cached requests differ in length")
    return CachedRequestData(
        request_ids=[request_ids[row] for row in rows],
        new_block_ids=[tuple(block_ids) for block_ids in new_block_ids],
        num_computed_tokens=list(message.num_computed_tokens),
    )


def _new_requests_to_proto(plan: SchedulerOutput) -> list[executor_pb2.NewRequest]:
    new = [_new_request_to_proto(data, is_resumed=False) for data in plan.scheduled_new_reqs]
    return new + [
        _new_request_to_proto(data, is_resumed=True) for data in plan.scheduled_resumed_reqs
    ]


def _new_request_to_proto(data: NewRequestData, *, is_resumed: bool) -> executor_pb2.NewRequest:
    return executor_pb2.NewRequest(
        request_id=data.request_id,
        token_ids=data.token_ids,
        num_prompt_tokens=data.num_prompt_tokens,
        num_computed_tokens=data.num_computed_tokens,
        block_ids=data.block_ids,
        sampling_params=sampling_params_to_proto(data.sampling_params),
        choice=data.choice,
        adapter=data.adapter,
        is_resumed=is_resumed,
    )


def _new_requests_from_proto(
    messages: Iterable[executor_pb2.NewRequest],
) -> tuple[list[NewRequestData], list[NewRequestData]]:
    """The new ones, and the resumed ones."""
    new: list[NewRequestData] = []
    resumed: list[NewRequestData] = []
    for message in messages:
        data = NewRequestData(
            request_id=message.request_id,
            token_ids=tuple(message.token_ids),
            num_prompt_tokens=message.num_prompt_tokens,
            num_computed_tokens=message.num_computed_tokens,
            block_ids=tuple(message.block_ids),
            sampling_params=sampling_params_from_proto(message.sampling_params),
            choice=message.choice,
            adapter=message.adapter,
        )
        (resumed if message.is_resumed else new).append(data)
    return new, resumed


def _stats_to_proto(stats: StepStats) -> executor_pb2.StepStats:
    return executor_pb2.StepStats(
        num_running=stats.num_running,
        num_waiting=stats.num_waiting,
        num_swapped=stats.num_swapped,
        num_free_blocks=stats.num_free_blocks,
        num_cached_blocks=stats.num_cached_blocks,
        token_budget_left=stats.token_budget_left,
    )


def _stats_from_proto(message: executor_pb2.StepStats) -> StepStats:
    return StepStats(
        num_running=message.num_running,
        num_waiting=message.num_waiting,
        num_swapped=message.num_swapped,
        num_free_blocks=message.num_free_blocks,
        num_cached_blocks=message.num_cached_blocks,
        token_budget_left=message.token_budget_left,
    )
