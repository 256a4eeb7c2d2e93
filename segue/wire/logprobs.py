"""Logprobs of a run of tokens as one message of columns. Knows nothing about whose tokens they are.

Invariant: the bytes of two runs, one after the other, are the bytes that decode to both, so a store
may append.
"""

from __future__ import annotations

from collections.abc import Sequence

from segue.types import TokenLogprobs
from segue.v1 import types_pb2
from segue.wire.columns import flatten


def encode_logprobs(logprobs: Sequence[TokenLogprobs]) -> bytes:
    return logprobs_to_proto(logprobs).SerializeToString()


def decode_logprobs(body: bytes) -> list[TokenLogprobs]:
    return logprobs_from_proto(types_pb2.TokenLogprobs.FromString(body))


def logprobs_to_proto(logprobs: Sequence[TokenLogprobs]) -> types_pb2.TokenLogprobs:
    return types_pb2.TokenLogprobs(
        logprobs=[one.logprob for one in logprobs],
        num_top=[len(one.top_token_ids) for one in logprobs],
        top_token_ids=flatten(one.top_token_ids for one in logprobs),
        top_logprobs=[value for one in logprobs for value in one.top_logprobs],
    )


def logprobs_from_proto(message: types_pb2.TokenLogprobs) -> list[TokenLogprobs]:
    top_token_ids = tuple(message.top_token_ids)
    top_logprobs = tuple(message.top_logprobs)
    decoded: list[TokenLogprobs] = []
    start = 0
    for logprob, num_top in zip(message.logprobs, message.num_top, strict=True):
        end = start + num_top
        decoded.append(TokenLogprobs(logprob, top_token_ids[start:end], top_logprobs[start:end]))
        start = end
    if not start == len(top_token_ids) == len(top_logprobs):
        raise ValueError("the columns of a TokenLogprobs message differ in length")
    return decoded
