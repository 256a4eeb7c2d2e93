"""What one commit brought for one gateway as one message: columns over requests.

Knows nothing about sessions or cursors. Invariant: the order of the outputs is kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from segue.types import Finish, FinishReason, RequestOutput, TokenLogprobs, Usage
from segue.v1 import scheduler_pb2, types_pb2
from segue.wire.columns import flatten, split
from segue.wire.logprobs import logprobs_from_proto, logprobs_to_proto

_REASON_TO_PROTO = {
    FinishReason.STOP: types_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: types_pb2.FINISH_REASON_LENGTH,
    FinishReason.ABORT: types_pb2.FINISH_REASON_ABORT,
    FinishReason.ERROR: types_pb2.FINISH_REASON_ERROR,
}
_REASON_FROM_PROTO = {number: reason for reason, number in _REASON_TO_PROTO.items()}


def outputs_to_proto(
    epoch: int, commit_seq: int, outputs: Sequence[RequestOutput]
) -> scheduler_pb2.Outputs:
    with_logprobs = [row for row, output in enumerate(outputs) if output.logprobs]
    finished = [(row, o.finish) for row, o in enumerate(outputs) if o.finish is not None]
    return scheduler_pb2.Outputs(
        epoch=epoch,
        commit_seq=commit_seq,
        request_ids=[output.request_id for output in outputs],
        first_indices=[output.first_index for output in outputs],
        num_tokens=[len(output.new_token_ids) for output in outputs],
        token_ids=flatten(output.new_token_ids for output in outputs),
        num_cached_tokens=[output.num_cached_tokens for output in outputs],
        logprobs_rows=with_logprobs,
        logprobs=[logprobs_to_proto(outputs[row].logprobs) for row in with_logprobs],
        finish_rows=[row for row, _ in finished],
        finishes=[finish_to_proto(finish) for _, finish in finished],
    )


def outputs_from_proto(message: scheduler_pb2.Outputs) -> list[RequestOutput]:
    logprobs: dict[int, tuple[TokenLogprobs, ...]] = {
        row: tuple(logprobs_from_proto(one))
        for row, one in zip(message.logprobs_rows, message.logprobs, strict=True)
    }
    finishes: dict[int, Finish] = {
        row: finish_from_proto(one)
        for row, one in zip(message.finish_rows, message.finishes, strict=True)
    }
    columns = zip(
        message.request_ids,
        message.first_indices,
        split(list(message.token_ids), message.num_tokens),
        message.num_cached_tokens,
        strict=True,
    )
    return [
        RequestOutput(
            request_id=request_id,
            first_index=first_index,
            new_token_ids=tuple(token_ids),
            logprobs=logprobs.get(row, ()),
            finish=finishes.get(row),
            num_cached_tokens=num_cached_tokens,
        )
        for row, (request_id, first_index, token_ids, num_cached_tokens) in enumerate(columns)
    ]


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
