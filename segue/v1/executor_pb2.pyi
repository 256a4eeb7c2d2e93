from segue.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ExecuteRequest(_message.Message):
    __slots__ = ("hello", "open", "step", "alive", "goodbye")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    hello: ExecutorHello
    open: Open
    step: SchedulerOutput
    alive: _types_pb2.Alive
    goodbye: _types_pb2.Goodbye
    def __init__(self, hello: _Optional[_Union[ExecutorHello, _Mapping]] = ..., open: _Optional[_Union[Open, _Mapping]] = ..., step: _Optional[_Union[SchedulerOutput, _Mapping]] = ..., alive: _Optional[_Union[_types_pb2.Alive, _Mapping]] = ..., goodbye: _Optional[_Union[_types_pb2.Goodbye, _Mapping]] = ...) -> None: ...

class ExecuteResponse(_message.Message):
    __slots__ = ("hello_ack", "refused", "step_result", "step_failed", "alive", "goodbye")
    HELLO_ACK_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    STEP_RESULT_FIELD_NUMBER: _ClassVar[int]
    STEP_FAILED_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    hello_ack: ExecutorHelloAck
    refused: Refused
    step_result: ModelRunnerOutput
    step_failed: StepFailed
    alive: _types_pb2.Alive
    goodbye: _types_pb2.Goodbye
    def __init__(self, hello_ack: _Optional[_Union[ExecutorHelloAck, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., step_result: _Optional[_Union[ModelRunnerOutput, _Mapping]] = ..., step_failed: _Optional[_Union[StepFailed, _Mapping]] = ..., alive: _Optional[_Union[_types_pb2.Alive, _Mapping]] = ..., goodbye: _Optional[_Union[_types_pb2.Goodbye, _Mapping]] = ...) -> None: ...

class ExecutorHello(_message.Message):
    __slots__ = ("protocol_version", "deployment_id", "leader", "model_digest", "executor_id", "newest_protocol_version")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    DEPLOYMENT_ID_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    EXECUTOR_ID_FIELD_NUMBER: _ClassVar[int]
    NEWEST_PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    deployment_id: str
    leader: _types_pb2.Leader
    model_digest: str
    executor_id: str
    newest_protocol_version: int
    def __init__(self, protocol_version: _Optional[int] = ..., deployment_id: _Optional[str] = ..., leader: _Optional[_Union[_types_pb2.Leader, _Mapping]] = ..., model_digest: _Optional[str] = ..., executor_id: _Optional[str] = ..., newest_protocol_version: _Optional[int] = ...) -> None: ...

class ExecutorHelloAck(_message.Message):
    __slots__ = ("executor_id", "incarnation_id", "generation", "last_step", "first_kept_step_id", "capacity", "model_digest", "protocol_version")
    EXECUTOR_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    LAST_STEP_FIELD_NUMBER: _ClassVar[int]
    FIRST_KEPT_STEP_ID_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    executor_id: str
    incarnation_id: str
    generation: _types_pb2.Generation
    last_step: _types_pb2.StepKey
    first_kept_step_id: int
    capacity: Capacity
    model_digest: str
    protocol_version: int
    def __init__(self, executor_id: _Optional[str] = ..., incarnation_id: _Optional[str] = ..., generation: _Optional[_Union[_types_pb2.Generation, _Mapping]] = ..., last_step: _Optional[_Union[_types_pb2.StepKey, _Mapping]] = ..., first_kept_step_id: _Optional[int] = ..., capacity: _Optional[_Union[Capacity, _Mapping]] = ..., model_digest: _Optional[str] = ..., protocol_version: _Optional[int] = ...) -> None: ...

class Capacity(_message.Message):
    __slots__ = ("num_blocks", "block_size", "num_cpu_blocks", "max_model_len", "vocab_size")
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_CPU_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    num_blocks: int
    block_size: int
    num_cpu_blocks: int
    max_model_len: int
    vocab_size: int
    def __init__(self, num_blocks: _Optional[int] = ..., block_size: _Optional[int] = ..., num_cpu_blocks: _Optional[int] = ..., max_model_len: _Optional[int] = ..., vocab_size: _Optional[int] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("leader_seen", "reason")
    LEADER_SEEN_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    leader_seen: _types_pb2.Leader
    reason: str
    def __init__(self, leader_seen: _Optional[_Union[_types_pb2.Leader, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("generation", "next_step_id", "results_after_step_id", "depth")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    NEXT_STEP_ID_FIELD_NUMBER: _ClassVar[int]
    RESULTS_AFTER_STEP_ID_FIELD_NUMBER: _ClassVar[int]
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    generation: _types_pb2.Generation
    next_step_id: int
    results_after_step_id: int
    depth: int
    def __init__(self, generation: _Optional[_Union[_types_pb2.Generation, _Mapping]] = ..., next_step_id: _Optional[int] = ..., results_after_step_id: _Optional[int] = ..., depth: _Optional[int] = ...) -> None: ...

class NewRequest(_message.Message):
    __slots__ = ("request_id", "token_ids", "num_prompt_tokens", "num_computed_tokens", "block_ids", "sampling_params", "choice", "adapter", "is_resumed")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_PARAMS_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    IS_RESUMED_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    num_prompt_tokens: int
    num_computed_tokens: int
    block_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling_params: _types_pb2.SamplingParams
    choice: int
    adapter: str
    is_resumed: bool
    def __init__(self, request_id: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., num_prompt_tokens: _Optional[int] = ..., num_computed_tokens: _Optional[int] = ..., block_ids: _Optional[_Iterable[int]] = ..., sampling_params: _Optional[_Union[_types_pb2.SamplingParams, _Mapping]] = ..., choice: _Optional[int] = ..., adapter: _Optional[str] = ..., is_resumed: _Optional[bool] = ...) -> None: ...

class SchedulerOutput(_message.Message):
    __slots__ = ("step_id", "epoch", "generation", "request_ids", "num_scheduled_tokens", "is_sampled", "output_indices", "num_draft_tokens", "draft_token_ids", "cached_request_rows", "num_computed_tokens", "num_new_blocks", "new_block_ids", "new_requests", "preempted_request_ids", "finished_request_ids", "swap_out", "swap_in", "copies", "num_lookahead_slots", "traceparent", "stats")
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_SCHEDULED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IS_SAMPLED_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_INDICES_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CACHED_REQUEST_ROWS_FIELD_NUMBER: _ClassVar[int]
    NUM_COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_NEW_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NEW_BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    NEW_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTED_REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    SWAP_OUT_FIELD_NUMBER: _ClassVar[int]
    SWAP_IN_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    NUM_LOOKAHEAD_SLOTS_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    STATS_FIELD_NUMBER: _ClassVar[int]
    step_id: int
    epoch: int
    generation: _types_pb2.Generation
    request_ids: _containers.RepeatedScalarFieldContainer[str]
    num_scheduled_tokens: _containers.RepeatedScalarFieldContainer[int]
    is_sampled: _containers.RepeatedScalarFieldContainer[bool]
    output_indices: _containers.RepeatedScalarFieldContainer[int]
    num_draft_tokens: _containers.RepeatedScalarFieldContainer[int]
    draft_token_ids: _containers.RepeatedScalarFieldContainer[int]
    cached_request_rows: _containers.RepeatedScalarFieldContainer[int]
    num_computed_tokens: _containers.RepeatedScalarFieldContainer[int]
    num_new_blocks: _containers.RepeatedScalarFieldContainer[int]
    new_block_ids: _containers.RepeatedScalarFieldContainer[int]
    new_requests: _containers.RepeatedCompositeFieldContainer[NewRequest]
    preempted_request_ids: _containers.RepeatedScalarFieldContainer[str]
    finished_request_ids: _containers.RepeatedScalarFieldContainer[str]
    swap_out: _containers.RepeatedScalarFieldContainer[int]
    swap_in: _containers.RepeatedScalarFieldContainer[int]
    copies: _containers.RepeatedScalarFieldContainer[int]
    num_lookahead_slots: int
    traceparent: str
    stats: StepStats
    def __init__(self, step_id: _Optional[int] = ..., epoch: _Optional[int] = ..., generation: _Optional[_Union[_types_pb2.Generation, _Mapping]] = ..., request_ids: _Optional[_Iterable[str]] = ..., num_scheduled_tokens: _Optional[_Iterable[int]] = ..., is_sampled: _Optional[_Iterable[bool]] = ..., output_indices: _Optional[_Iterable[int]] = ..., num_draft_tokens: _Optional[_Iterable[int]] = ..., draft_token_ids: _Optional[_Iterable[int]] = ..., cached_request_rows: _Optional[_Iterable[int]] = ..., num_computed_tokens: _Optional[_Iterable[int]] = ..., num_new_blocks: _Optional[_Iterable[int]] = ..., new_block_ids: _Optional[_Iterable[int]] = ..., new_requests: _Optional[_Iterable[_Union[NewRequest, _Mapping]]] = ..., preempted_request_ids: _Optional[_Iterable[str]] = ..., finished_request_ids: _Optional[_Iterable[str]] = ..., swap_out: _Optional[_Iterable[int]] = ..., swap_in: _Optional[_Iterable[int]] = ..., copies: _Optional[_Iterable[int]] = ..., num_lookahead_slots: _Optional[int] = ..., traceparent: _Optional[str] = ..., stats: _Optional[_Union[StepStats, _Mapping]] = ...) -> None: ...

class StepStats(_message.Message):
    __slots__ = ("num_running", "num_waiting", "num_swapped", "num_free_blocks", "num_cached_blocks", "token_budget_left")
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    NUM_SWAPPED_FIELD_NUMBER: _ClassVar[int]
    NUM_FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BUDGET_LEFT_FIELD_NUMBER: _ClassVar[int]
    num_running: int
    num_waiting: int
    num_swapped: int
    num_free_blocks: int
    num_cached_blocks: int
    token_budget_left: int
    def __init__(self, num_running: _Optional[int] = ..., num_waiting: _Optional[int] = ..., num_swapped: _Optional[int] = ..., num_free_blocks: _Optional[int] = ..., num_cached_blocks: _Optional[int] = ..., token_budget_left: _Optional[int] = ...) -> None: ...

class ModelRunnerOutput(_message.Message):
    __slots__ = ("step_id", "generation", "request_ids", "first_output_indices", "num_tokens", "token_ids", "logprobs_rows", "logprobs", "draft_request_ids", "num_draft_tokens", "draft_token_ids", "error_request_ids", "errors", "timings", "num_verified_drafts")
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    FIRST_OUTPUT_INDICES_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_ROWS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    ERROR_REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    NUM_VERIFIED_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    step_id: int
    generation: _types_pb2.Generation
    request_ids: _containers.RepeatedScalarFieldContainer[str]
    first_output_indices: _containers.RepeatedScalarFieldContainer[int]
    num_tokens: _containers.RepeatedScalarFieldContainer[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs_rows: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[_types_pb2.TokenLogprobs]
    draft_request_ids: _containers.RepeatedScalarFieldContainer[str]
    num_draft_tokens: _containers.RepeatedScalarFieldContainer[int]
    draft_token_ids: _containers.RepeatedScalarFieldContainer[int]
    error_request_ids: _containers.RepeatedScalarFieldContainer[str]
    errors: _containers.RepeatedScalarFieldContainer[str]
    timings: StepTimings
    num_verified_drafts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, step_id: _Optional[int] = ..., generation: _Optional[_Union[_types_pb2.Generation, _Mapping]] = ..., request_ids: _Optional[_Iterable[str]] = ..., first_output_indices: _Optional[_Iterable[int]] = ..., num_tokens: _Optional[_Iterable[int]] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs_rows: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[_types_pb2.TokenLogprobs, _Mapping]]] = ..., draft_request_ids: _Optional[_Iterable[str]] = ..., num_draft_tokens: _Optional[_Iterable[int]] = ..., draft_token_ids: _Optional[_Iterable[int]] = ..., error_request_ids: _Optional[_Iterable[str]] = ..., errors: _Optional[_Iterable[str]] = ..., timings: _Optional[_Union[StepTimings, _Mapping]] = ..., num_verified_drafts: _Optional[_Iterable[int]] = ...) -> None: ...

class StepTimings(_message.Message):
    __slots__ = ("idle_us", "prepare_us", "forward_us", "sample_us")
    IDLE_US_FIELD_NUMBER: _ClassVar[int]
    PREPARE_US_FIELD_NUMBER: _ClassVar[int]
    FORWARD_US_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_US_FIELD_NUMBER: _ClassVar[int]
    idle_us: int
    prepare_us: int
    forward_us: int
    sample_us: int
    def __init__(self, idle_us: _Optional[int] = ..., prepare_us: _Optional[int] = ..., forward_us: _Optional[int] = ..., sample_us: _Optional[int] = ...) -> None: ...

class StepFailed(_message.Message):
    __slots__ = ("step_id", "generation", "error")
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    step_id: int
    generation: _types_pb2.Generation
    error: str
    def __init__(self, step_id: _Optional[int] = ..., generation: _Optional[_Union[_types_pb2.Generation, _Mapping]] = ..., error: _Optional[str] = ...) -> None: ...
