from segue.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RejectCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REJECT_CODE_UNSPECIFIED: _ClassVar[RejectCode]
    REJECT_CODE_QUEUE_FULL: _ClassVar[RejectCode]
    REJECT_CODE_TOO_LONG: _ClassVar[RejectCode]
    REJECT_CODE_INVALID: _ClassVar[RejectCode]
    REJECT_CODE_UNSUPPORTED: _ClassVar[RejectCode]
REJECT_CODE_UNSPECIFIED: RejectCode
REJECT_CODE_QUEUE_FULL: RejectCode
REJECT_CODE_TOO_LONG: RejectCode
REJECT_CODE_INVALID: RejectCode
REJECT_CODE_UNSUPPORTED: RejectCode

class SessionRequest(_message.Message):
    __slots__ = ("hello", "submit", "abort", "alive", "goodbye", "attach")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    SUBMIT_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    hello: SessionHello
    submit: Submit
    abort: Abort
    alive: _types_pb2.Alive
    goodbye: _types_pb2.Goodbye
    attach: Attach
    def __init__(self, hello: _Optional[_Union[SessionHello, _Mapping]] = ..., submit: _Optional[_Union[Submit, _Mapping]] = ..., abort: _Optional[_Union[Abort, _Mapping]] = ..., alive: _Optional[_Union[_types_pb2.Alive, _Mapping]] = ..., goodbye: _Optional[_Union[_types_pb2.Goodbye, _Mapping]] = ..., attach: _Optional[_Union[Attach, _Mapping]] = ...) -> None: ...

class SessionResponse(_message.Message):
    __slots__ = ("hello_ack", "not_leader", "accepted", "unknown", "detached", "rejected", "outputs", "alive", "goodbye")
    HELLO_ACK_FIELD_NUMBER: _ClassVar[int]
    NOT_LEADER_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    DETACHED_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    hello_ack: SessionHelloAck
    not_leader: NotLeader
    accepted: Accepted
    unknown: Unknown
    detached: Detached
    rejected: Rejected
    outputs: Outputs
    alive: _types_pb2.Alive
    goodbye: _types_pb2.Goodbye
    def __init__(self, hello_ack: _Optional[_Union[SessionHelloAck, _Mapping]] = ..., not_leader: _Optional[_Union[NotLeader, _Mapping]] = ..., accepted: _Optional[_Union[Accepted, _Mapping]] = ..., unknown: _Optional[_Union[Unknown, _Mapping]] = ..., detached: _Optional[_Union[Detached, _Mapping]] = ..., rejected: _Optional[_Union[Rejected, _Mapping]] = ..., outputs: _Optional[_Union[Outputs, _Mapping]] = ..., alive: _Optional[_Union[_types_pb2.Alive, _Mapping]] = ..., goodbye: _Optional[_Union[_types_pb2.Goodbye, _Mapping]] = ...) -> None: ...

class SessionHello(_message.Message):
    __slots__ = ("protocol_version", "gateway_id", "session_id", "epoch_seen", "leader_id_seen", "attachments", "newest_protocol_version")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    GATEWAY_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_SEEN_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_SEEN_FIELD_NUMBER: _ClassVar[int]
    ATTACHMENTS_FIELD_NUMBER: _ClassVar[int]
    NEWEST_PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    gateway_id: str
    session_id: str
    epoch_seen: int
    leader_id_seen: str
    attachments: _containers.RepeatedCompositeFieldContainer[Attachment]
    newest_protocol_version: int
    def __init__(self, protocol_version: _Optional[int] = ..., gateway_id: _Optional[str] = ..., session_id: _Optional[str] = ..., epoch_seen: _Optional[int] = ..., leader_id_seen: _Optional[str] = ..., attachments: _Optional[_Iterable[_Union[Attachment, _Mapping]]] = ..., newest_protocol_version: _Optional[int] = ...) -> None: ...

class Attachment(_message.Message):
    __slots__ = ("request_id", "delivered_token_ids", "delivered_logprobs", "is_finished")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    IS_FINISHED_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    delivered_token_ids: _containers.RepeatedScalarFieldContainer[int]
    delivered_logprobs: _types_pb2.TokenLogprobs
    is_finished: bool
    def __init__(self, request_id: _Optional[str] = ..., delivered_token_ids: _Optional[_Iterable[int]] = ..., delivered_logprobs: _Optional[_Union[_types_pb2.TokenLogprobs, _Mapping]] = ..., is_finished: _Optional[bool] = ...) -> None: ...

class SessionHelloAck(_message.Message):
    __slots__ = ("leader", "model_digest", "max_model_len", "protocol_version")
    LEADER_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    leader: _types_pb2.Leader
    model_digest: str
    max_model_len: int
    protocol_version: int
    def __init__(self, leader: _Optional[_Union[_types_pb2.Leader, _Mapping]] = ..., model_digest: _Optional[str] = ..., max_model_len: _Optional[int] = ..., protocol_version: _Optional[int] = ...) -> None: ...

class NotLeader(_message.Message):
    __slots__ = ("leader", "leader_address")
    LEADER_FIELD_NUMBER: _ClassVar[int]
    LEADER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    leader: _types_pb2.Leader
    leader_address: str
    def __init__(self, leader: _Optional[_Union[_types_pb2.Leader, _Mapping]] = ..., leader_address: _Optional[str] = ...) -> None: ...

class Submit(_message.Message):
    __slots__ = ("submissions", "delivered")
    SUBMISSIONS_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    submissions: _containers.RepeatedCompositeFieldContainer[_types_pb2.Submission]
    delivered: _containers.RepeatedCompositeFieldContainer[Attachment]
    def __init__(self, submissions: _Optional[_Iterable[_Union[_types_pb2.Submission, _Mapping]]] = ..., delivered: _Optional[_Iterable[_Union[Attachment, _Mapping]]] = ...) -> None: ...

class Attach(_message.Message):
    __slots__ = ("attachments",)
    ATTACHMENTS_FIELD_NUMBER: _ClassVar[int]
    attachments: _containers.RepeatedCompositeFieldContainer[Attachment]
    def __init__(self, attachments: _Optional[_Iterable[_Union[Attachment, _Mapping]]] = ...) -> None: ...

class Abort(_message.Message):
    __slots__ = ("request_id", "reason", "num_delivered_tokens")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    NUM_DELIVERED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    reason: str
    num_delivered_tokens: int
    def __init__(self, request_id: _Optional[str] = ..., reason: _Optional[str] = ..., num_delivered_tokens: _Optional[int] = ...) -> None: ...

class Accepted(_message.Message):
    __slots__ = ("request_ids", "next_indices", "submissions")
    REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    NEXT_INDICES_FIELD_NUMBER: _ClassVar[int]
    SUBMISSIONS_FIELD_NUMBER: _ClassVar[int]
    request_ids: _containers.RepeatedScalarFieldContainer[str]
    next_indices: _containers.RepeatedScalarFieldContainer[int]
    submissions: _containers.RepeatedCompositeFieldContainer[_types_pb2.Submission]
    def __init__(self, request_ids: _Optional[_Iterable[str]] = ..., next_indices: _Optional[_Iterable[int]] = ..., submissions: _Optional[_Iterable[_Union[_types_pb2.Submission, _Mapping]]] = ...) -> None: ...

class Unknown(_message.Message):
    __slots__ = ("request_ids",)
    REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    request_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, request_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class Detached(_message.Message):
    __slots__ = ("request_ids",)
    REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    request_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, request_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class Rejected(_message.Message):
    __slots__ = ("request_id", "code", "retry_after_ms", "message")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    code: RejectCode
    retry_after_ms: int
    message: str
    def __init__(self, request_id: _Optional[str] = ..., code: _Optional[_Union[RejectCode, str]] = ..., retry_after_ms: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class Outputs(_message.Message):
    __slots__ = ("epoch", "commit_seq", "request_ids", "first_indices", "num_tokens", "token_ids", "num_cached_tokens", "logprobs_rows", "logprobs", "finish_rows", "finishes")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    COMMIT_SEQ_FIELD_NUMBER: _ClassVar[int]
    REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDICES_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_ROWS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FINISH_ROWS_FIELD_NUMBER: _ClassVar[int]
    FINISHES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    commit_seq: int
    request_ids: _containers.RepeatedScalarFieldContainer[str]
    first_indices: _containers.RepeatedScalarFieldContainer[int]
    num_tokens: _containers.RepeatedScalarFieldContainer[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    num_cached_tokens: _containers.RepeatedScalarFieldContainer[int]
    logprobs_rows: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[_types_pb2.TokenLogprobs]
    finish_rows: _containers.RepeatedScalarFieldContainer[int]
    finishes: _containers.RepeatedCompositeFieldContainer[_types_pb2.Finish]
    def __init__(self, epoch: _Optional[int] = ..., commit_seq: _Optional[int] = ..., request_ids: _Optional[_Iterable[str]] = ..., first_indices: _Optional[_Iterable[int]] = ..., num_tokens: _Optional[_Iterable[int]] = ..., token_ids: _Optional[_Iterable[int]] = ..., num_cached_tokens: _Optional[_Iterable[int]] = ..., logprobs_rows: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[_types_pb2.TokenLogprobs, _Mapping]]] = ..., finish_rows: _Optional[_Iterable[int]] = ..., finishes: _Optional[_Iterable[_Union[_types_pb2.Finish, _Mapping]]] = ...) -> None: ...

class RegisterRequest(_message.Message):
    __slots__ = ("executor_id", "incarnation_id", "address", "epoch_seen")
    EXECUTOR_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_SEEN_FIELD_NUMBER: _ClassVar[int]
    executor_id: str
    incarnation_id: str
    address: str
    epoch_seen: int
    def __init__(self, executor_id: _Optional[str] = ..., incarnation_id: _Optional[str] = ..., address: _Optional[str] = ..., epoch_seen: _Optional[int] = ...) -> None: ...

class RegisterResponse(_message.Message):
    __slots__ = ("leader",)
    LEADER_FIELD_NUMBER: _ClassVar[int]
    leader: _types_pb2.Leader
    def __init__(self, leader: _Optional[_Union[_types_pb2.Leader, _Mapping]] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("leader", "commit_seq", "policy", "pause_state", "lanes", "num_requests_unplaced", "num_requests_finished", "num_streams_resumed", "num_tokens_recomputed", "num_steps_finished", "is_store_down")
    LEADER_FIELD_NUMBER: _ClassVar[int]
    COMMIT_SEQ_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    PAUSE_STATE_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    NUM_REQUESTS_UNPLACED_FIELD_NUMBER: _ClassVar[int]
    NUM_REQUESTS_FINISHED_FIELD_NUMBER: _ClassVar[int]
    NUM_STREAMS_RESUMED_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_RECOMPUTED_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FINISHED_FIELD_NUMBER: _ClassVar[int]
    IS_STORE_DOWN_FIELD_NUMBER: _ClassVar[int]
    leader: _types_pb2.Leader
    commit_seq: int
    policy: str
    pause_state: str
    lanes: _containers.RepeatedCompositeFieldContainer[LaneStatus]
    num_requests_unplaced: int
    num_requests_finished: int
    num_streams_resumed: int
    num_tokens_recomputed: int
    num_steps_finished: int
    is_store_down: bool
    def __init__(self, leader: _Optional[_Union[_types_pb2.Leader, _Mapping]] = ..., commit_seq: _Optional[int] = ..., policy: _Optional[str] = ..., pause_state: _Optional[str] = ..., lanes: _Optional[_Iterable[_Union[LaneStatus, _Mapping]]] = ..., num_requests_unplaced: _Optional[int] = ..., num_requests_finished: _Optional[int] = ..., num_streams_resumed: _Optional[int] = ..., num_tokens_recomputed: _Optional[int] = ..., num_steps_finished: _Optional[int] = ..., is_store_down: _Optional[bool] = ...) -> None: ...

class LaneStatus(_message.Message):
    __slots__ = ("executor_id", "address", "status", "is_connected", "generation", "next_step_id", "num_steps_in_flight", "num_running", "num_waiting", "num_swapped", "num_free_blocks", "num_usable_blocks")
    EXECUTOR_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    IS_CONNECTED_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    NEXT_STEP_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    NUM_SWAPPED_FIELD_NUMBER: _ClassVar[int]
    NUM_FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_USABLE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    executor_id: str
    address: str
    status: str
    is_connected: bool
    generation: _types_pb2.Generation
    next_step_id: int
    num_steps_in_flight: int
    num_running: int
    num_waiting: int
    num_swapped: int
    num_free_blocks: int
    num_usable_blocks: int
    def __init__(self, executor_id: _Optional[str] = ..., address: _Optional[str] = ..., status: _Optional[str] = ..., is_connected: _Optional[bool] = ..., generation: _Optional[_Union[_types_pb2.Generation, _Mapping]] = ..., next_step_id: _Optional[int] = ..., num_steps_in_flight: _Optional[int] = ..., num_running: _Optional[int] = ..., num_waiting: _Optional[int] = ..., num_swapped: _Optional[int] = ..., num_free_blocks: _Optional[int] = ..., num_usable_blocks: _Optional[int] = ...) -> None: ...

class PauseRequest(_message.Message):
    __slots__ = ("pause_running",)
    PAUSE_RUNNING_FIELD_NUMBER: _ClassVar[int]
    pause_running: bool
    def __init__(self, pause_running: _Optional[bool] = ...) -> None: ...

class PauseResponse(_message.Message):
    __slots__ = ("pause_state",)
    PAUSE_STATE_FIELD_NUMBER: _ClassVar[int]
    pause_state: str
    def __init__(self, pause_state: _Optional[str] = ...) -> None: ...

class ResumeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResumeResponse(_message.Message):
    __slots__ = ("pause_state",)
    PAUSE_STATE_FIELD_NUMBER: _ClassVar[int]
    pause_state: str
    def __init__(self, pause_state: _Optional[str] = ...) -> None: ...

class ResetPrefixCacheRequest(_message.Message):
    __slots__ = ("reset_running_requests",)
    RESET_RUNNING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    reset_running_requests: bool
    def __init__(self, reset_running_requests: _Optional[bool] = ...) -> None: ...

class ResetPrefixCacheResponse(_message.Message):
    __slots__ = ("is_reset",)
    IS_RESET_FIELD_NUMBER: _ClassVar[int]
    is_reset: bool
    def __init__(self, is_reset: _Optional[bool] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("executor_id",)
    EXECUTOR_ID_FIELD_NUMBER: _ClassVar[int]
    executor_id: str
    def __init__(self, executor_id: _Optional[str] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("num_requests_moved",)
    NUM_REQUESTS_MOVED_FIELD_NUMBER: _ClassVar[int]
    num_requests_moved: int
    def __init__(self, num_requests_moved: _Optional[int] = ...) -> None: ...

class GetConfigurationRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetConfigurationResponse(_message.Message):
    __slots__ = ("settings",)
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    settings: _containers.RepeatedCompositeFieldContainer[SettingState]
    def __init__(self, settings: _Optional[_Iterable[_Union[SettingState, _Mapping]]] = ...) -> None: ...

class SettingState(_message.Message):
    __slots__ = ("name", "value", "flag_value", "fixed_reason")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    FLAG_VALUE_FIELD_NUMBER: _ClassVar[int]
    FIXED_REASON_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    flag_value: str
    fixed_reason: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ..., flag_value: _Optional[str] = ..., fixed_reason: _Optional[str] = ...) -> None: ...

class ChangeConfigurationRequest(_message.Message):
    __slots__ = ("values", "unset_names")
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    VALUES_FIELD_NUMBER: _ClassVar[int]
    UNSET_NAMES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.ScalarMap[str, str]
    unset_names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, values: _Optional[_Mapping[str, str]] = ..., unset_names: _Optional[_Iterable[str]] = ...) -> None: ...

class ChangeConfigurationResponse(_message.Message):
    __slots__ = ("settings",)
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    settings: _containers.RepeatedCompositeFieldContainer[SettingState]
    def __init__(self, settings: _Optional[_Iterable[_Union[SettingState, _Mapping]]] = ...) -> None: ...
