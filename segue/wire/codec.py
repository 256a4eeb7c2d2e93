"""The encodings that the scheduler's core and its store need, as one object.

Knows nothing about either. Invariant: stateless, so that one may be shared.
"""

from __future__ import annotations

from segue.types import SchedulerOutput, Submission, TokenLogprobs
from segue.wire.logprobs import decode_logprobs, encode_logprobs
from segue.wire.plans import decode_step, encode_step
from segue.wire.requests import decode_submission, encode_submission


class WireCodec:
    """The core's `Codec` (scheduler_svc/core/engine_state.py) in the bytes of the wire."""

    __slots__ = ()

    def encode_step(self, plan: SchedulerOutput) -> bytes:
        return encode_step(plan)

    def decode_step(self, body: bytes) -> SchedulerOutput:
        return decode_step(body)

    def encode_submission(self, submission: Submission) -> bytes:
        return encode_submission(submission)

    def decode_submission(self, body: bytes) -> Submission:
        return decode_submission(body)

    def encode_logprobs(self, logprobs: list[TokenLogprobs]) -> bytes:
        return encode_logprobs(logprobs)

    def decode_logprobs(self, body: bytes) -> list[TokenLogprobs]:
        return decode_logprobs(body)
