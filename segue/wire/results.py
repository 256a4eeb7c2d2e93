"""A step's result as the message that an executor answers with: columns over its rows.

Knows nothing about steps or streams. Invariant: the order of `request_ids` is kept.
"""

from __future__ import annotations

from segue.types import ModelRunnerOutput, StepTimings
from segue.v1 import executor_pb2
from segue.wire.columns import flatten, split
from segue.wire.identities import generation_from_proto, generation_to_proto
from segue.wire.logprobs import logprobs_from_proto, logprobs_to_proto


def step_result_to_proto(result: ModelRunnerOutput) -> executor_pb2.ModelRunnerOutput:
    message = executor_pb2.ModelRunnerOutput(
        step_id=result.step_id,
        generation=generation_to_proto(result.generation),
        request_ids=result.request_ids,
        first_output_indices=result.first_output_indices,
        num_tokens=[len(token_ids) for token_ids in result.sampled_token_ids],
        token_ids=flatten(result.sampled_token_ids),
        num_verified_drafts=result.num_verified_drafts,
        timings=executor_pb2.StepTimings(
            idle_us=result.timings.idle_us,
            prepare_us=result.timings.prepare_us,
            forward_us=result.timings.forward_us,
            sample_us=result.timings.sample_us,
        ),
    )
    if result.logprobs:
        row_of = {request_id: row for row, request_id in enumerate(result.request_ids)}
        message.logprobs_rows.extend([row_of[request_id] for request_id in result.logprobs])
        message.logprobs.extend([logprobs_to_proto(rows) for rows in result.logprobs.values()])
    if result.draft_token_ids:
        message.draft_request_ids.extend(result.draft_token_ids)
        message.num_draft_tokens.extend([len(ids) for ids in result.draft_token_ids.values()])
        message.draft_token_ids.extend(flatten(result.draft_token_ids.values()))
    if result.row_errors:
        message.error_request_ids.extend(result.row_errors)
        message.errors.extend(result.row_errors.values())
    return message


def step_result_from_proto(message: executor_pb2.ModelRunnerOutput) -> ModelRunnerOutput:
    request_ids = list(message.request_ids)
    drafts = split(list(message.draft_token_ids), message.num_draft_tokens)
    timings = message.timings
    return ModelRunnerOutput(
        step_id=message.step_id,
        generation=generation_from_proto(message.generation),
        request_ids=request_ids,
        first_output_indices=list(message.first_output_indices),
        sampled_token_ids=split(list(message.token_ids), message.num_tokens),
        logprobs={
            request_ids[row]: logprobs_from_proto(logprobs)
            for row, logprobs in zip(message.logprobs_rows, message.logprobs, strict=True)
        },
        draft_token_ids=dict(zip(message.draft_request_ids, drafts, strict=True)),
        row_errors=dict(zip(message.error_request_ids, message.errors, strict=True)),
        timings=StepTimings(
            idle_us=timings.idle_us,
            prepare_us=timings.prepare_us,
            forward_us=timings.forward_us,
            sample_us=timings.sample_us,
        ),
        num_verified_drafts=list(message.num_verified_drafts),
    )
