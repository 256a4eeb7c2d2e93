"""The values of `segue/types.py` as the messages of protos/segue/v1, and back.

Knows nothing about streams, Redis or what the values mean. Invariant: what is decoded equals what
was encoded (floats of logprobs as 32 bits), and the same value always gives the same bytes, so what
is stored may be compared, sent, and sent again. Where a value does not fit its field, encoding
raises ValueError or TypeError.
"""

from segue.wire.codec import WireCodec
from segue.wire.identities import (
    capacity_from_proto,
    capacity_to_proto,
    generation_from_proto,
    generation_to_proto,
    step_key_from_proto,
    step_key_to_proto,
)
from segue.wire.logprobs import (
    decode_logprobs,
    encode_logprobs,
    logprobs_from_proto,
    logprobs_to_proto,
)
from segue.wire.outputs import (
    finish_from_proto,
    finish_to_proto,
    outputs_from_proto,
    outputs_to_proto,
)
from segue.wire.plans import decode_step, encode_step, step_from_proto, step_to_proto
from segue.wire.requests import (
    attachment_from_proto,
    attachment_to_proto,
    decode_submission,
    encode_submission,
    sampling_params_from_proto,
    sampling_params_to_proto,
    submission_from_proto,
    submission_to_proto,
)
from segue.wire.results import step_result_from_proto, step_result_to_proto
from segue.wire.versions import (
    OLDEST_PROTOCOL_VERSION,
    OUR_VERSIONS,
    PROTOCOL_VERSION,
    ProtocolMismatch,
    ProtocolVersions,
)

__all__ = [
    "OLDEST_PROTOCOL_VERSION",
    "OUR_VERSIONS",
    "PROTOCOL_VERSION",
    "ProtocolMismatch",
    "ProtocolVersions",
    "WireCodec",
    "attachment_from_proto",
    "attachment_to_proto",
    "capacity_from_proto",
    "capacity_to_proto",
    "decode_logprobs",
    "decode_step",
    "decode_submission",
    "encode_logprobs",
    "encode_step",
    "encode_submission",
    "finish_from_proto",
    "finish_to_proto",
    "generation_from_proto",
    "generation_to_proto",
    "logprobs_from_proto",
    "logprobs_to_proto",
    "outputs_from_proto",
    "outputs_to_proto",
    "sampling_params_from_proto",
    "sampling_params_to_proto",
    "step_from_proto",
    "step_key_from_proto",
    "step_key_to_proto",
    "step_result_from_proto",
    "step_result_to_proto",
    "step_to_proto",
    "submission_from_proto",
    "submission_to_proto",
]
