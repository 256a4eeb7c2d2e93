"""What a session has to tell, as protobuf.

Knows nothing about when. Invariant: one message of the core is one message of the wire.
"""

from __future__ import annotations

from scheduler_svc.core.events import Accepted, Detached, RejectCode, Rejected, Unknown
from scheduler_svc.sessions import NewOutputs, SessionMessage, SessionReady, SignOfLife
from segue import wire
from segue.v1 import scheduler_pb2, types_pb2

REJECT_CODES = {
    RejectCode.QUEUE_FULL: scheduler_pb2.REJECT_CODE_QUEUE_FULL,
    RejectCode.TOO_LONG: scheduler_pb2.REJECT_CODE_TOO_LONG,
    RejectCode.INVALID: scheduler_pb2.REJECT_CODE_INVALID,
    RejectCode.UNSUPPORTED: scheduler_pb2.REJECT_CODE_UNSUPPORTED,
}


def message_to_proto(message: SessionMessage) -> scheduler_pb2.SessionResponse:
    match message:
        case NewOutputs():
            outputs = wire.outputs_to_proto(message.epoch, message.commit_seq, message.outputs)
            return scheduler_pb2.SessionResponse(outputs=outputs)
        case SignOfLife():
            return scheduler_pb2.SessionResponse(alive=types_pb2.Alive(epoch=message.epoch))
        case SessionReady():
            leader = types_pb2.Leader(epoch=message.epoch, leader_id=message.leader_id)
            ack = scheduler_pb2.SessionHelloAck(
                leader=leader,
                max_model_len=message.max_model_len,
                protocol_version=message.protocol_version,
            )
            return scheduler_pb2.SessionResponse(hello_ack=ack)
        case Rejected():
            return scheduler_pb2.SessionResponse(rejected=_rejected(message))
        case Accepted() | Unknown() | Detached():
            return _about_request(message)


def _about_request(message: Accepted | Unknown | Detached) -> scheduler_pb2.SessionResponse:
    request_ids = [message.request_id]
    match message:
        case Accepted():
            accepted = scheduler_pb2.Accepted(
                request_ids=request_ids, next_indices=[message.next_index]
            )
            if message.submission is not None:
                accepted.submissions.append(wire.submission_to_proto(message.submission))
            return scheduler_pb2.SessionResponse(accepted=accepted)
        case Unknown():
            unknown = scheduler_pb2.Unknown(request_ids=request_ids)
            return scheduler_pb2.SessionResponse(unknown=unknown)
        case Detached():
            detached = scheduler_pb2.Detached(request_ids=request_ids)
            return scheduler_pb2.SessionResponse(detached=detached)


def _rejected(message: Rejected) -> scheduler_pb2.Rejected:
    return scheduler_pb2.Rejected(
        request_id=message.request_id,
        code=REJECT_CODES[message.code],
        retry_after_ms=message.retry_after_ms,
        message=message.message,
    )
