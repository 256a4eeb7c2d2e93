"""What a gateway measures: what clients see. vLLM's rows, ours, and OpenTelemetry's GenAI ones.

Knows nothing about how it is measured. Invariant: `engine` is `all` here, since a gateway does not
know which executor serves a choice.
"""

from __future__ import annotations

from segue.instruments.buckets import (
    FIRST_TOKEN_S,
    GEN_AI_FIRST_TOKEN_S,
    GEN_AI_REQUEST_S,
    GEN_AI_TOKEN_S,
    INTER_TOKEN_S,
    PARAMS_N,
    REQUEST_S,
    REQUEST_TOKENS,
)
from segue.instruments.instrument import (
    ENGINE,
    MODEL,
    Instrument,
    Kind,
    Service,
    counter,
    gauge,
    histogram,
)
from segue.tracing import names

GATEWAY = Service.GATEWAY
GEN_AI = (
    names.GEN_AI_OPERATION_NAME,
    names.GEN_AI_PROVIDER_NAME,
    names.GEN_AI_REQUEST_MODEL,
    names.GEN_AI_RESPONSE_MODEL,
)

VLLM_GATEWAY = (
    gauge(GATEWAY, "vllm:num_requests_running", "Choices of this gateway with a token.", ENGINE),
    gauge(
        GATEWAY, "vllm:num_requests_waiting", "Choices of this gateway without a token yet.", ENGINE
    ),
    gauge(
        GATEWAY,
        "vllm:kv_cache_usage_perc",
        "Of all executors together, as the leader says; 1 means 100 percent.",
        ENGINE,
        "while a leader with an executor answers",
    ),
    histogram(
        GATEWAY,
        "vllm:time_to_first_token_seconds",
        "From a choice's arrival to its first token.",
        ENGINE,
        FIRST_TOKEN_S,
    ),
    histogram(
        GATEWAY,
        "vllm:inter_token_latency_seconds",
        "Between a choice's new tokens and those before.",
        ENGINE,
        INTER_TOKEN_S,
    ),
    histogram(
        GATEWAY,
        "vllm:request_time_per_output_token_seconds",
        "Of an ended choice: from its first token to its last, for each token after the first.",
        ENGINE,
        INTER_TOKEN_S,
    ),
    histogram(
        GATEWAY,
        "vllm:e2e_request_latency_seconds",
        "From a choice's arrival to its end.",
        ENGINE,
        REQUEST_S,
    ),
    counter(
        GATEWAY,
        "vllm:request_success",
        "Choices that ended, by reason: stop, length, abort or error.",
        (*ENGINE, "finished_reason"),
    ),
    histogram(
        GATEWAY,
        "vllm:request_prompt_tokens",
        "Prompt tokens of an ended choice.",
        ENGINE,
        REQUEST_TOKENS,
    ),
    histogram(
        GATEWAY,
        "vllm:request_generation_tokens",
        "Tokens received of an ended choice.",
        ENGINE,
        REQUEST_TOKENS,
    ),
    histogram(
        GATEWAY,
        "vllm:request_max_num_generation_tokens",
        "The most tokens of the choices drawn for one prompt.",
        ENGINE,
        REQUEST_TOKENS,
    ),
    histogram(GATEWAY, "vllm:request_params_n", "Choices asked for one prompt.", ENGINE, PARAMS_N),
    histogram(
        GATEWAY,
        "vllm:request_params_max_tokens",
        "max_tokens of an ended choice.",
        ENGINE,
        REQUEST_TOKENS,
    ),
)

SEGUE_GATEWAY = (
    gauge(GATEWAY, "segue:gateway_is_connected", "1 while a leader answers.", MODEL),
    counter(GATEWAY, "segue:gateway_sessions_opened", "Sessions with a leader.", MODEL),
    counter(GATEWAY, "segue:gateway_streams_resumed", "Clients that came back.", MODEL),
    counter(
        GATEWAY, "segue:gateway_streams_diverged", "Clients that came back to another text.", MODEL
    ),
    counter(
        GATEWAY,
        "segue:gateway_suppressed_duplicates",
        "Tokens that came again and were not shown again.",
        MODEL,
    ),
    counter(
        GATEWAY,
        "segue:gateway_row_mismatches",
        "Rows that contradicted what a client had: a fault of ours.",
        MODEL,
    ),
)

OTLP_GATEWAY = (
    Instrument(
        GATEWAY,
        "gen_ai.server.request.duration",
        Kind.HISTOGRAM,
        "Seconds from a choice's arrival to its end.",
        (*GEN_AI, names.ERROR_TYPE),
        GEN_AI_REQUEST_S,
        is_otlp=True,
    ),
    Instrument(
        GATEWAY,
        "gen_ai.server.time_to_first_token",
        Kind.HISTOGRAM,
        "Seconds from a choice's arrival to its first token.",
        GEN_AI,
        GEN_AI_FIRST_TOKEN_S,
        is_otlp=True,
    ),
    Instrument(
        GATEWAY,
        "gen_ai.server.time_per_output_token",
        Kind.HISTOGRAM,
        "Seconds for each token after the first, of a choice that ended well.",
        GEN_AI,
        GEN_AI_TOKEN_S,
        is_otlp=True,
    ),
)
