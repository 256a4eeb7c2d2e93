"""The names of spans and attributes: OpenTelemetry's, pinned, and ours.

Knows nothing about who sets them. Invariant: a name of the semantic conventions stands here and
nowhere else, as it is in the version below; those of GenAI are still experimental, so a newer
version may rename them, and then this file is what changes.
"""

from __future__ import annotations

from typing import Final

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"

PROVIDER: Final = "segue"  # a value: who answers, in GenAI's words

# GenAI
GEN_AI_OPERATION_NAME: Final = "gen_ai.operation.name"
GEN_AI_PROVIDER_NAME: Final = "gen_ai.provider.name"
GEN_AI_REQUEST_CHOICE_COUNT: Final = "gen_ai.request.choice.count"
GEN_AI_REQUEST_FREQUENCY_PENALTY: Final = "gen_ai.request.frequency_penalty"
GEN_AI_REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
GEN_AI_REQUEST_MODEL: Final = "gen_ai.request.model"
GEN_AI_REQUEST_PRESENCE_PENALTY: Final = "gen_ai.request.presence_penalty"
GEN_AI_REQUEST_SEED: Final = "gen_ai.request.seed"
GEN_AI_REQUEST_STOP_SEQUENCES: Final = "gen_ai.request.stop_sequences"
GEN_AI_REQUEST_STREAM: Final = "gen_ai.request.stream"
GEN_AI_REQUEST_TEMPERATURE: Final = "gen_ai.request.temperature"
GEN_AI_REQUEST_TOP_K: Final = "gen_ai.request.top_k"
GEN_AI_REQUEST_TOP_P: Final = "gen_ai.request.top_p"
GEN_AI_RESPONSE_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
GEN_AI_RESPONSE_ID: Final = "gen_ai.response.id"
GEN_AI_RESPONSE_MODEL: Final = "gen_ai.response.model"
GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
GEN_AI_USAGE_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
GEN_AI_USAGE_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"

# HTTP, errors, databases, services
DB_SYSTEM_NAME: Final = "db.system.name"
ERROR_TYPE: Final = "error.type"
HTTP_REQUEST_METHOD: Final = "http.request.method"
HTTP_RESPONSE_STATUS_CODE: Final = "http.response.status_code"
HTTP_ROUTE: Final = "http.route"
SERVICE_INSTANCE_ID: Final = "service.instance.id"
SERVICE_NAME: Final = "service.name"
SERVICE_VERSION: Final = "service.version"
URL_PATH: Final = "url.path"
URL_SCHEME: Final = "url.scheme"

# Ours. Of requests:
REQUEST_ID: Final = "segue.request.id"
REQUEST_CHOICE: Final = "segue.request.choice"
REQUEST_PRIORITY: Final = "segue.request.priority"
REQUEST_PHASE: Final = "segue.request.phase"
REQUEST_TOKENS: Final = "segue.request.tokens"
NUM_PREEMPTIONS: Final = "segue.request.num_preemptions"
END_REASON: Final = "segue.end.reason"
END_MESSAGE: Final = "segue.end.message"
CAUSE: Final = "cause"  # of events
MODE: Final = "mode"
BY: Final = "by"

# Of steps:
STEP_ID: Final = "segue.step.id"
STEP_KEPT: Final = "segue.step.kept_because"
STEP_REQUESTS: Final = "segue.step.requests"
STEP_NUM_REQUESTS: Final = "segue.step.num_requests"
EPOCH: Final = "segue.epoch"
GENERATION: Final = "segue.generation"
LANE: Final = "segue.lane"
POLICY: Final = "segue.policy"
NUM_RUNNING: Final = "segue.requests.running"
NUM_WAITING: Final = "segue.requests.waiting"
NUM_SWAPPED: Final = "segue.requests.swapped"
PREEMPTED_IDS: Final = "segue.requests.preempted_ids"
FINISHED_IDS: Final = "segue.requests.finished_ids"
TOKENS_SCHEDULED: Final = "segue.tokens.scheduled"
TOKENS_PREFILL: Final = "segue.tokens.prefill"
TOKENS_DECODE: Final = "segue.tokens.decode"
TOKENS_DRAFT: Final = "segue.tokens.draft"
TOKENS_BUDGET_LEFT: Final = "segue.tokens.budget_left"
TOKENS_SAMPLED: Final = "segue.tokens.sampled"
BLOCKS_FREE: Final = "segue.blocks.free"
BLOCKS_USED: Final = "segue.blocks.used"
BLOCKS_CACHED: Final = "segue.blocks.cached"
BLOCKS_SWAPPED_IN: Final = "segue.blocks.swapped_in"
BLOCKS_SWAPPED_OUT: Final = "segue.blocks.swapped_out"
BLOCKS_COPIED: Final = "segue.blocks.copied"
WIRE_BYTES: Final = "segue.wire.bytes"
IS_ADOPTED: Final = "segue.adopted"  # planned by a scheduler that has ended
EXECUTOR_IDLE_US: Final = "segue.executor.idle_us"
EXECUTOR_PREPARE_US: Final = "segue.executor.prepare_us"
EXECUTOR_FORWARD_US: Final = "segue.executor.forward_us"
EXECUTOR_SAMPLE_US: Final = "segue.executor.sample_us"

LINK_KIND: Final = "segue.link"  # what a link that is not to a request means
LINK_PREVIOUS_EPOCH: Final = "last_step_of_previous_epoch"
LINK_BEGUN_BY: Final = "begun_by"  # a phase, by a step
LINK_RESUMED_AFTER: Final = "resumed_after"

SPAN_REQUEST: Final = "request"
SPAN_STEP: Final = "engine.step"
SPAN_SCHEDULE: Final = "schedule"
SPAN_COMMIT: Final = "redis.commit"
SPAN_EXECUTE: Final = "executor.execute"
SPAN_UPDATE: Final = "update_from_output"
SPAN_EXECUTE_MODEL: Final = "execute_model"

SERVICE_GATEWAY: Final = "segue-gateway"
SERVICE_SCHEDULER: Final = "segue-scheduler"
SERVICE_EXECUTOR: Final = "segue-executor"


def operation_name(kind: str) -> str:
    """GenAI's word for a kind of call, which is "chat" or "completion"."""
    return "text_completion" if kind == "completion" else kind
