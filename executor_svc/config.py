"""Configuration of the executor service, from flags and SEGUE_<FLAG>.

Knows nothing about how it is used. Invariant: frozen; read once, at start.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from segue.config import MAX_PORT
from segue.grpc_tls import TlsConfig


@dataclass(slots=True, frozen=True)
class ExecutorServiceConfig(TlsConfig):
    """Flags are these names with dashes; vLLM's name where it has one."""

    model: Path = field(metadata={"help": "directory of the model"})
    listen: str = field(default="127.0.0.1:50061", metadata={"help": "address to serve gRPC on"})
    advertise: str = field(
        default="", metadata={"help": "address that schedulers dial; empty: --listen"}
    )
    executor_id: str = field(default="e0", metadata={"help": "name of this executor's lane"})
    schedulers: tuple[str, ...] = field(
        default=(), metadata={"help": "host:port of each scheduler, comma separated"}
    )
    deployment: str = field(
        default="", metadata={"help": "serve only this deployment's schedulers; empty: any"}
    )
    dtype: str = field(default="auto", metadata={"help": "auto | bfloat16 | float32"})
    device: str = field(default="auto", metadata={"help": "auto | cpu | cuda"})
    deterministic: bool = field(
        default=False,
        metadata={"help": "on a GPU: the same bits in any batch (a CPU always gives them)"},
    )
    load_format: str = field(
        default="auto", metadata={"help": "auto | dummy: random weights, to measure with"}
    )
    quantization: str = field(
        default="none",
        metadata={"help": "weights of products on a CPU: none | int8 | q4_1 (4-bit groups)"},
    )
    gpu_memory_utilization: float = field(
        default=0.9, metadata={"help": "share of a GPU's memory for weights and KV cache"}
    )
    block_size: int = field(default=16, metadata={"help": "tokens in a KV cache block", "least": 1})
    kv_cache_bytes: int = field(default=1 << 30, metadata={"help": "memory of the KV cache"})
    num_blocks: int = field(
        default=0, metadata={"help": "KV cache blocks; 0: as many as --kv-cache-bytes holds"}
    )
    populate_kv_cache: bool = field(
        default=True,
        metadata={"help": "take the KV cache's memory at the start, and not as it is used"},
    )
    num_cpu_blocks: int = field(default=0, metadata={"help": "blocks to swap out to; 0: none"})
    swap_space_bytes: int = field(
        default=0, metadata={"help": "memory to swap out to, instead of --num-cpu-blocks"}
    )
    max_model_len: int = field(default=0, metadata={"help": "tokens in a request; 0: the model's"})
    num_threads: int = field(
        default=0, metadata={"help": "threads that compute; 0: torch's choice"}
    )
    speculative_method: str = field(
        default="", metadata={"help": "who drafts: ngram | draft_model; empty: nobody"}
    )
    draft_model: Path | None = field(
        default=None, metadata={"help": "directory of a smaller model with the same vocabulary"}
    )
    heartbeat_s: float = field(
        default=0.5, metadata={"help": "between two signs of life", "least": 0.01}
    )
    metrics_port: int = field(
        default=0, metadata={"help": "port of /metrics; 0: none", "most": MAX_PORT}
    )
    health_listen: str = field(
        default="", metadata={"help": "address of a plain health service for probes; empty: none"}
    )
    hang_s: float = field(
        default=300.0, metadata={"help": "not alive when one step runs for longer"}
    )
    drain_grace_s: float = field(
        default=10.0, metadata={"help": "after SIGTERM, to hand requests over and end what runs"}
    )
    trace_slow_step_ms: int = field(
        default=1000, metadata={"help": "a step that takes longer is always traced"}
    )
    fault_step_delay_ms: int = field(
        default=0, metadata={"help": "for tests: each step takes this much longer"}
    )
    fault_step_pipe: Path | None = field(
        default=None, metadata={"help": "for tests: each step waits for a byte of this named pipe"}
    )
