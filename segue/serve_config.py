"""What `segue serve` can be told, and which of it each service is told in turn.

Knows names of flags; checks no value that a service checks. Invariant: a flag that several services
share stands here, so that all get the same value; the scheduler's own are named, and passed on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from segue.config import MAX_PORT

EXECUTOR_FLAGS = (
    *("dtype", "kv_cache_bytes", "num_blocks", "num_cpu_blocks", "num_threads"),
    *("block_size", "max_model_len", "heartbeat_s", "trace_slow_step_ms"),
    *("swap_space_bytes", "speculative_method", "draft_model"),
    *("device", "deterministic", "load_format", "gpu_memory_utilization", "quantization"),
)
SCHEDULER_FLAGS = (
    *("policy", "log_steps", "block_size", "max_model_len", "lease_ttl_s", "heartbeat_s"),
    *("stall_s", "trace_step_ratio", "trace_slow_step_ms"),
    "num_speculative_tokens",
)
PASSED_ON_FLAGS = (
    *("scheduling_policy", "preempt_for_admission", "priority_aging_s"),
    *("max_num_seqs", "max_num_batched_tokens", "watermark"),
    *("enable_prefix_caching", "enable_chunked_prefill", "long_prefill_token_threshold"),
    *("preemption_mode", "delay_factor", "max_paddings", "async_scheduling"),
    *("max_queued_requests", "durability", "executor_grace_s", "step_timeout_s"),
    *("finished_ttl_s", "orphan_timeout_s"),
)
COUNTS = (
    *("num_schedulers", "num_executors", "num_gateways", "gateway_workers"),
    "block_size",
)
GATEWAY_FLAGS = ("stall_s", "max_model_len", "lease_ttl_s", "heartbeat_s")


@dataclass(slots=True, frozen=True)
class ServeConfig:
    """Flags of `segue serve`. None: the service's own default."""

    model: Path | None = field(
        default=None,
        metadata={"help": "model directory or GGUF file; without it the demo model is fetched"},
    )
    served_model_name: tuple[str, ...] = field(
        default=(), metadata={"help": "names of the model in the API; default: its directory's"}
    )
    host: str = field(default="127.0.0.1", metadata={"help": "address to serve HTTP on"})
    port: int = field(
        default=8000, metadata={"help": "port to serve HTTP on; 0: any free one", "most": MAX_PORT}
    )
    state_dir: Path | None = field(
        default=None, metadata={"help": "state directory; default: one for each model"}
    )
    fresh: bool = field(default=False, metadata={"help": "discard the state that is there"})
    redis_url: str = field(
        default="", metadata={"help": "a Redis of your own instead of an embedded one"}
    )
    deployment: str = field(
        default="", metadata={"help": "name in every Redis key; default: the model's"}
    )
    num_schedulers: int = field(default=1, metadata={"help": "one leads, the others stand by"})
    num_executors: int = field(default=1, metadata={"help": "each is a lane with its own KV cache"})
    num_gateways: int = field(default=1, metadata={"help": "on --port and the ports after it"})
    gateway_workers: int = field(
        default=1, metadata={"help": "processes of each gateway, which share its port"}
    )
    policy: str | None = field(
        default=None, metadata={"help": "unified | three_queue | module:Class"}
    )
    log_steps: bool = field(default=False, metadata={"help": "log one line for each step"})
    trace_step_ratio: float | None = field(
        default=None, metadata={"help": "share of the steps that are traced, where traces are"}
    )
    trace_slow_step_ms: int | None = field(
        default=None, metadata={"help": "a step that takes longer is always traced"}
    )
    dtype: str | None = field(default=None, metadata={"help": "auto | bfloat16 | float32"})
    device: str | None = field(default=None, metadata={"help": "auto | cpu | cuda"})
    deterministic: bool = field(
        default=False, metadata={"help": "on a GPU: the same bits in any batch"}
    )
    load_format: str | None = field(
        default=None, metadata={"help": "auto | dummy: random weights, to measure with"}
    )
    quantization: str = field(
        default="none",
        metadata={"help": "weights of products on a CPU: none | int8 | q4_1 (4-bit groups)"},
    )
    gpu_memory_utilization: float | None = field(
        default=None, metadata={"help": "share of a GPU's memory for weights and KV cache"}
    )
    block_size: int = field(default=16, metadata={"help": "tokens in a KV cache block", "least": 1})
    kv_cache_bytes: int | None = field(default=None, metadata={"help": "of each executor"})
    num_blocks: int | None = field(
        default=None, metadata={"help": "KV cache blocks of each executor, instead of bytes"}
    )
    num_cpu_blocks: int | None = field(
        default=None, metadata={"help": "blocks of each executor to swap out to"}
    )
    swap_space_bytes: int | None = field(
        default=None,
        metadata={"help": "memory to swap out to, of each executor, instead of blocks"},
    )
    speculative_method: str | None = field(
        default=None, metadata={"help": "who drafts tokens ahead: ngram | draft_model"}
    )
    num_speculative_tokens: int | None = field(
        default=None, metadata={"help": "most drafts of a request in a step"}
    )
    draft_model: Path | None = field(
        default=None, metadata={"help": "a smaller model (directory or GGUF file) that drafts"}
    )
    num_threads: int | None = field(default=None, metadata={"help": "of each executor"})
    max_model_len: int | None = field(
        default=None, metadata={"help": "tokens in prompt and output"}
    )
    lease_ttl_s: float | None = field(
        default=None, metadata={"help": "a silent leader is replaced after"}
    )
    heartbeat_s: float | None = field(default=None, metadata={"help": "between two signs of life"})
    stall_s: float | None = field(
        default=None, metadata={"help": "not ready when nothing has moved for longer"}
    )

    def __post_init__(self) -> None:
        if bool(self.speculative_method) != bool(self.num_speculative_tokens):
            raise ValueError("--speculative-method and --num-speculative-tokens need each other")
        for name in COUNTS:
            if getattr(self, name) < 1:
                raise ValueError(f"--{name.replace('_', '-')}: at least 1 is needed")

    def deployment_of(self, model_name: str) -> str:
        """Redis keys take letters, digits, dot, underscore and dash."""
        return self.deployment or re.sub(r"[^A-Za-z0-9._-]", "-", model_name)
