"""Submissions, their sampling parameters, and attachments as messages.

Knows nothing about sessions. Invariant: a submission's bytes are its value: stored, sent again and
compared, they mean the same.
"""

from __future__ import annotations

from segue.types import Attachment, SamplingParams, Submission
from segue.v1 import scheduler_pb2, types_pb2
from segue.wire.logprobs import logprobs_from_proto, logprobs_to_proto


def encode_submission(submission: Submission) -> bytes:
    return submission_to_proto(submission).SerializeToString()


def decode_submission(body: bytes) -> Submission:
    return submission_from_proto(types_pb2.Submission.FromString(body))


def submission_to_proto(submission: Submission) -> types_pb2.Submission:
    return types_pb2.Submission(
        request_id=submission.request_id,
        prompt_token_ids=submission.prompt_token_ids,
        sampling_params=sampling_params_to_proto(submission.sampling_params),
        arrival_unix_ms=submission.arrival_unix_ms,
        choice=submission.choice,
        group_id=submission.group_id,
        group_size=submission.group_size,
        priority=submission.priority,
        cache_salt=submission.cache_salt,
        adapter=submission.adapter,
        traceparent=submission.traceparent,
        client_context=submission.client_context,
        skip_reading_prefix_cache=submission.skip_reading_prefix_cache,
        is_resumable=submission.is_resumable,
    )


def submission_from_proto(message: types_pb2.Submission) -> Submission:
    return Submission(
        request_id=message.request_id,
        prompt_token_ids=tuple(message.prompt_token_ids),
        sampling_params=sampling_params_from_proto(message.sampling_params),
        arrival_unix_ms=message.arrival_unix_ms,
        choice=message.choice,
        group_id=message.group_id,
        group_size=message.group_size,
        priority=message.priority,
        cache_salt=message.cache_salt,
        adapter=message.adapter,
        traceparent=message.traceparent,
        client_context=message.client_context,
        skip_reading_prefix_cache=message.skip_reading_prefix_cache,
        is_resumable=message.is_resumable,
    )


def sampling_params_to_proto(params: SamplingParams) -> types_pb2.SamplingParams:
    return types_pb2.SamplingParams(
        seed=params.seed,
        max_tokens=params.max_tokens,
        min_tokens=params.min_tokens,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty,
        logit_bias_token_ids=[token_id for token_id, _ in params.logit_bias],
        logit_bias_values=[bias for _, bias in params.logit_bias],
        eos_token_id=params.eos_token_id,
        stop_token_ids=params.stop_token_ids,
        num_logprobs=params.num_logprobs,
    )


def sampling_params_from_proto(message: types_pb2.SamplingParams) -> SamplingParams:
    logit_bias = zip(message.logit_bias_token_ids, message.logit_bias_values, strict=True)
    return SamplingParams(
        seed=message.seed,
        max_tokens=message.max_tokens,
        min_tokens=message.min_tokens,
        temperature=message.temperature,
        top_k=message.top_k,
        top_p=message.top_p,
        min_p=message.min_p,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        repetition_penalty=message.repetition_penalty,
        logit_bias=tuple(logit_bias),
        eos_token_id=message.eos_token_id if message.HasField("eos_token_id") else None,
        stop_token_ids=tuple(message.stop_token_ids),
        num_logprobs=message.num_logprobs if message.HasField("num_logprobs") else None,
    )


def attachment_to_proto(attachment: Attachment) -> scheduler_pb2.Attachment:
    logprobs = attachment.delivered_logprobs
    return scheduler_pb2.Attachment(
        request_id=attachment.request_id,
        delivered_token_ids=attachment.delivered_token_ids,
        delivered_logprobs=logprobs_to_proto(logprobs) if logprobs else None,
        is_finished=attachment.is_finished,
    )


def attachment_from_proto(message: scheduler_pb2.Attachment) -> Attachment:
    return Attachment(
        request_id=message.request_id,
        delivered_token_ids=tuple(message.delivered_token_ids),
        delivered_logprobs=tuple(logprobs_from_proto(message.delivered_logprobs)),
        is_finished=message.is_finished,
    )
