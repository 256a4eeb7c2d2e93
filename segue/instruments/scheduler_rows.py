"""What the leading scheduler measures: vLLM's rows of its engine, one engine for each executor.

Knows nothing about how it is measured. Invariant: `engine` is the executor's id.
"""

from __future__ import annotations

from segue.instruments.buckets import (
    ITERATION_TOKENS,
    NUM_PREEMPTIONS,
    REQUEST_S,
    REQUEST_TOKENS,
)
from segue.instruments.instrument import ENGINE, MODEL, Service, counter, gauge, histogram

SCHEDULER = Service.SCHEDULER
FIRST_LANE = "once an executor has connected"

VLLM_SCHEDULER = (
    gauge(SCHEDULER, "vllm:num_requests_running", "Requests that run.", ENGINE, FIRST_LANE),
    gauge(
        SCHEDULER,
        "vllm:num_requests_waiting",
        "Requests that wait; of engine `none` while no executor could take them.",
        ENGINE,
    ),
    gauge(
        SCHEDULER,
        "vllm:num_requests_waiting_by_reason",
        "Those that wait: for capacity, or deferred by a rule.",
        (*ENGINE, "reason"),
    ),
    gauge(
        SCHEDULER,
        "vllm:num_requests_swapped",
        "Requests whose KV is in CPU memory (three_queue; vLLM V0's name).",
        ENGINE,
        FIRST_LANE,
    ),
    gauge(
        SCHEDULER,
        "vllm:kv_cache_usage_perc",
        "KV cache blocks in use; 1 means 100 percent.",
        ENGINE,
        FIRST_LANE,
    ),
    gauge(
        SCHEDULER,
        "vllm:cache_config_info",
        "Always 1; the labels tell the KV cache's configuration.",
        (
            *ENGINE,
            *("block_size", "num_gpu_blocks", "num_cpu_blocks", "enable_prefix_caching"),
        ),
        FIRST_LANE,
    ),
    counter(
        SCHEDULER,
        "vllm:prefix_cache_queries",
        "Tokens looked up in the prefix cache, at first admissions.",
        ENGINE,
    ),
    counter(SCHEDULER, "vllm:prefix_cache_hits", "Those of them that were cached.", ENGINE),
    counter(SCHEDULER, "vllm:num_preemptions", "Requests that were preempted.", ENGINE),
    counter(
        SCHEDULER,
        "vllm:prompt_tokens",
        "Prompt tokens of requests that have got their first token, cached ones included.",
        ENGINE,
    ),
    counter(
        SCHEDULER,
        "vllm:prompt_tokens_by_source",
        "The same: local_compute or local_cache_hit.",
        (*ENGINE, "source"),
    ),
    counter(SCHEDULER, "vllm:prompt_tokens_cached", "Those of them that were cached.", ENGINE),
    counter(SCHEDULER, "vllm:generation_tokens", "Tokens that were generated.", ENGINE),
    histogram(
        SCHEDULER,
        "vllm:iteration_tokens_total",
        "Prompt tokens computed and tokens generated, of one step.",
        ENGINE,
        ITERATION_TOKENS,
    ),
    histogram(
        SCHEDULER,
        "vllm:request_queue_time_seconds",
        "From acceptance to the first step that was planned with it.",
        ENGINE,
        REQUEST_S,
    ),
    histogram(
        SCHEDULER,
        "vllm:request_prefill_time_seconds",
        "From that step's plan to the first token.",
        ENGINE,
        REQUEST_S,
    ),
    histogram(
        SCHEDULER,
        "vllm:request_decode_time_seconds",
        "From the first token to the end.",
        ENGINE,
        REQUEST_S,
    ),
    histogram(
        SCHEDULER,
        "vllm:request_inference_time_seconds",
        "From the first plan to the end.",
        ENGINE,
        REQUEST_S,
    ),
    histogram(
        SCHEDULER,
        "vllm:request_num_preemptions",
        "How often an ended request was preempted.",
        ENGINE,
        NUM_PREEMPTIONS,
    ),
    histogram(
        SCHEDULER,
        "vllm:request_prefill_kv_computed_tokens",
        "Prompt tokens of an ended request that were not cached.",
        ENGINE,
        REQUEST_TOKENS,
    ),
    counter(
        SCHEDULER,
        "vllm:admission_rejections",
        "Requests refused since the queue was full, by reason.",
        (*MODEL, "reason"),
    ),
    counter(SCHEDULER, "vllm:spec_decode_num_drafts", "Drafts that were verified.", ENGINE),
    counter(SCHEDULER, "vllm:spec_decode_num_draft_tokens", "Tokens in them.", ENGINE),
    counter(SCHEDULER, "vllm:spec_decode_num_accepted_tokens", "Those accepted.", ENGINE),
    counter(
        SCHEDULER,
        "vllm:spec_decode_num_accepted_tokens_per_pos",
        "The same by their position in the draft.",
        (*ENGINE, "position"),
        "once a draft of that length was verified",
    ),
)
