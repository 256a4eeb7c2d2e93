"""What one commit brought for one gateway as one message: columns over requests.

Knows nothing about sessions or cursors. Invariant: the order of the outputs is kept, and no object
is made of a row that has nothing but tokens.
"""

from __future__ import annotations

from segue.types import Finish, FinishReason, OutputColumns, Usage
from segue.v1 import scheduler_pb2, types_pb2
from segue.wire.columns import check_lengths
from segue.wire.logprobs import logprobs_from_proto, logprobs_to_proto

_REASON_TO_PROTO = {
    FinishReason.STOP: types_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: types_pb2.FINISH_REASON_LENGTH,
    FinishReason.ABORT: types_pb2.FINISH_REASON_ABORT,
    FinishReason.ERROR: types_pb2.FINISH_REASON_ERROR,
}
_REASON_FROM_PROTO = {number: reason for reason, number in _REASON_TO_PROTO.items()}


def outputs_to_proto(epoch: int, commit_seq: int, outputs: OutputColumns) -> scheduler_pb2.Outputs:
    message = scheduler_pb2.Outputs(
        epoch=epoch,
        commit_seq=commit_seq,
        request_ids=outputs.request_ids,
        first_indices=outputs.first_indices,
        num_tokens=outputs.num_tokens,
        token_ids=outputs.token_ids,
        num_cached_tokens=outputs.num_cached_tokens,
    )
    if outputs.logprobs:
        message.logprobs_rows.extend(outputs.logprobs)
        message.logprobs.extend([logprobs_to_proto(rows) for rows in outputs.logprobs.values()])
    if outputs.finishes:
        message.finish_rows.extend(outputs.finishes)
        message.finishes.extend([finish_to_proto(finish) for finish in outputs.finishes.values()])
    return message


def outputs_from_proto(message: scheduler_pb2.Outputs) -> OutputColumns:
    outputs = OutputColumns(
        list(message.request_ids),
        list(message.first_indices),
        list(message.num_tokens),
        list(message.token_ids),
        list(message.num_cached_tokens),
    )
    check_lengths(outputs.token_ids, outputs.num_tokens)
    num_rows = len(outputs.request_ids)
    if not (
        num_rows
        == len(outputs.first_indices)
        == len(outputs.num_tokens)
        == len(outputs.num_cached_tokens)
    ):
        raise ValueError("the columns of outputs differ in length")
    for row, logprobs in zip(message.logprobs_rows, message.logprobs, strict=True):
        outputs.logprobs[row] = tuple(logprobs_from_proto(logprobs))
    for row, finish in zip(message.finish_rows, message.finishes, strict=True):
        outputs.finishes[row] = finish_from_proto(finish)
    return outputs


def finish_to_proto(finish: Finish) -> types_pb2.Finish:
    return types_pb2.Finish(
        reason=_REASON_TO_PROTO[finish.reason],
        usage=types_pb2.Usage(
            num_prompt_tokens=finish.usage.num_prompt_tokens,
            num_output_tokens=finish.usage.num_output_tokens,
            num_cached_tokens=finish.usage.num_cached_tokens,
        ),
        stop_reason=finish.stop_reason,
        message=finish.message,
    )


def finish_from_proto(message: types_pb2.Finish) -> Finish:
    return Finish(
        reason=_REASON_FROM_PROTO[message.reason],
        usage=Usage(
            num_prompt_tokens=message.usage.num_prompt_tokens,
            num_output_tokens=message.usage.num_output_tokens,
            num_cached_tokens=message.usage.num_cached_tokens,
        ),
        stop_reason=message.stop_reason if message.HasField("stop_reason") else None,
        message=message.message,
    )
