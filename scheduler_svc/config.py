"""Configuration of the scheduler service, from flags and SEGUE_<FLAG>.

Knows nothing about how it is used. Invariant: frozen; read once, at start.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from hashlib import blake2b

from scheduler_svc.core.engine_state import EngineConfig
from scheduler_svc.core.scheduler_config import CHANGEABLE, SchedulerConfig
from scheduler_svc.core.three_queue.config import ThreeQueueConfig
from segue.config import MAX_PORT
from segue.grpc_tls import TlsConfig
from segue.version import STATE_SCHEMA_VERSION

HASH_ALGORITHM = "blake2b-16"  # of blocks
DURABILITIES = ("everysec", "always", "replicated")  # the store's own: server_check.Durability


@dataclass(slots=True, frozen=True)
class SchedulerServiceConfig(TlsConfig):
    """Flags are these names with dashes; vLLM's name where it has one."""

    listen: str = field(default="127.0.0.1:50051", metadata={"help": "address to serve gRPC on"})
    advertise: str = field(
        default="", metadata={"help": "address that others are told; empty: --listen"}
    )
    redis_url: str = field(
        default="redis://127.0.0.1:6379/0",
        metadata={"help": "where the state is kept; or redis+sentinel://host,host/service"},
    )
    deployment: str = field(
        default="default", metadata={"help": "name of the model deployment, in every Redis key"}
    )
    served_model_name: tuple[str, ...] = field(
        default=(), metadata={"help": "the first is /metrics' model_name; empty: the deployment"}
    )
    scheduler_id: str = field(
        default="s0", metadata={"help": "stable identity: the same one takes its lease back"}
    )
    has_peers: bool = field(
        default=True,
        metadata={"help": "another scheduler may hold more than a wiped Redis: let it speak first"},
    )
    executors: tuple[str, ...] = field(
        default=(), metadata={"help": "static executors, as id=host:port, comma separated"}
    )
    policy: str = field(
        default="unified", metadata={"help": "unified | three_queue | module:Class"}
    )
    scheduling_policy: str = field(default="fcfs", metadata={"help": "fcfs | priority"})
    preempt_for_admission: bool = field(
        default=False,
        metadata={"help": "a waiting request may preempt a less important one, one in a step"},
    )
    priority_aging_s: float = field(
        default=0.0, metadata={"help": "waiting this long counts as one level; 0: no ageing"}
    )
    block_size: int = field(default=16, metadata={"help": "tokens in a KV cache block", "least": 1})
    max_num_batched_tokens: int = field(
        default=2048, metadata={"help": "tokens in one step", "least": 1}
    )
    max_num_seqs: int = field(
        default=128, metadata={"help": "requests running at a time", "least": 1}
    )
    max_model_len: int = field(
        default=8192, metadata={"help": "tokens in prompt and output", "least": 1}
    )
    enable_prefix_caching: bool = field(default=True, metadata={"help": "reuse cached prefixes"})
    enable_chunked_prefill: bool = field(default=True, metadata={"help": "split long prompts"})
    long_prefill_token_threshold: int = field(
        default=0, metadata={"help": "most prompt tokens of one request in a step; 0: no limit"}
    )
    watermark: float = field(
        default=0.0, metadata={"help": "share of the blocks that admission leaves free"}
    )
    preemption_mode: str = field(
        default="recompute",
        metadata={"help": "recompute | swap (three_queue, to the executors' CPU blocks)"},
    )
    delay_factor: float = field(
        default=0.0,
        metadata={"help": "hold prompts back this many prompt steps' time (three_queue)"},
    )
    max_paddings: int | None = field(
        default=None, metadata={"help": "most padding of a batch of prompts (three_queue)"}
    )
    async_scheduling: bool = field(
        default=True, metadata={"help": "plan a step while the one before it runs"}
    )
    num_speculative_tokens: int = field(
        default=0,
        metadata={"help": "most drafts of a request in a step; its executor makes them"},
    )
    max_queued_requests: int = field(
        default=1024, metadata={"help": "requests waiting; more are refused", "least": 1}
    )
    lease_ttl_s: float = field(
        default=3.0, metadata={"help": "a silent leader is replaced after", "least": 0.1}
    )
    heartbeat_s: float = field(
        default=0.5, metadata={"help": "between two signs of life", "least": 0.01}
    )
    executor_grace_s: float = field(
        default=5.0, metadata={"help": "an unconnected executor is given up after"}
    )
    step_timeout_s: float = field(
        default=60.0, metadata={"help": "a step without an answer is given up after"}
    )
    finished_ttl_s: float = field(
        default=300.0, metadata={"help": "a finished request can be read again for"}
    )
    orphan_timeout_s: float = field(
        default=60.0, metadata={"help": "a request without a gateway is aborted after"}
    )
    durability: str = field(default="everysec", metadata={"help": "everysec | always | replicated"})
    log_steps: bool = field(default=False, metadata={"help": "log one line for each step"})
    trace_step_ratio: float = field(
        default=1.0, metadata={"help": "share of the steps that are traced, where traces are"}
    )
    trace_slow_step_ms: int = field(
        default=1000, metadata={"help": "a step that takes longer is traced all the same"}
    )
    metrics_port: int = field(
        default=0, metadata={"help": "port of /metrics; 0: none", "most": MAX_PORT}
    )

    health_listen: str = field(
        default="", metadata={"help": "address of a plain health service for probes; empty: none"}
    )
    stall_s: float = field(
        default=10.0, metadata={"help": "not ready when requests wait and no step ends for longer"}
    )

    def __post_init__(self) -> None:
        if not 0 <= self.trace_step_ratio <= 1:
            raise ValueError(f"--trace-step-ratio: {self.trace_step_ratio} is not from 0 to 1")
        TlsConfig.__post_init__(self)
        if self.durability not in DURABILITIES:
            known = ", ".join(DURABILITIES)
            raise ValueError(f"--durability: {self.durability!r} is not one of {known}")
        is_asked = self.preempt_for_admission or self.priority_aging_s
        if is_asked and self.policy == "three_queue":
            raise ValueError("three_queue has neither --preempt-for-admission nor ageing")
        if self.policy == "unified" and self.is_for_v0:
            raise ValueError("swap, --delay-factor and --max-paddings are three_queue's")
        if self.num_speculative_tokens < 0:
            raise ValueError("--num-speculative-tokens must not be negative")
        if self.num_speculative_tokens and self.policy == "three_queue":
            raise ValueError("three_queue has no --num-speculative-tokens")
        if self.num_speculative_tokens and not self.async_scheduling:
            raise ValueError("--num-speculative-tokens needs --async-scheduling")

    @property
    def is_for_v0(self) -> bool:
        """Something is asked for that `three_queue` alone does, or a policy derived from it."""
        is_asked = self.preemption_mode != "recompute" or self.max_paddings is not None
        return is_asked or bool(self.delay_factor)

    @property
    def model_name(self) -> str:
        return self.served_model_name[0] if self.served_model_name else self.deployment

    def digest(self) -> str:
        """Of all that shapes the state of a lane (PROTOCOL.md H32): a change ends the generations.

        Steps in flight, running requests and block tables were made under the old rules. What
        `unified` may change between two steps is not in it: that may change between two lives too.
        """
        rows = f"rows {STATE_SCHEMA_VERSION}"  # of an older scheduler: read as of other settings
        config = self._scheduler_config()
        free = CHANGEABLE if self.policy == "unified" else frozenset[str]()
        values = {f.name: getattr(config, f.name) for f in fields(config) if f.name not in free}
        shaping = f"{self.policy} {values} {HASH_ALGORITHM} {rows}"
        return f"{self.policy}-{blake2b(shaping.encode(), digest_size=8).hexdigest()}"

    def engine_config(self) -> EngineConfig:
        return EngineConfig(
            scheduler=self._scheduler_config(),
            depth=2 if self.async_scheduling else 1,
            max_queued_requests=self.max_queued_requests,
            finished_ttl_ms=int(self.finished_ttl_s * 1000),
        )

    def _scheduler_config(self) -> SchedulerConfig:
        common = SchedulerConfig(
            block_size=self.block_size,
            enable_prefix_caching=self.enable_prefix_caching,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_model_len=self.max_model_len,
            policy=self.scheduling_policy,
            preempt_for_admission=self.preempt_for_admission,
            priority_aging_ms=round(self.priority_aging_s * 1000),
            enable_chunked_prefill=self.enable_chunked_prefill,
            long_prefill_token_threshold=self.long_prefill_token_threshold,
            watermark=self.watermark,
            async_scheduling=self.async_scheduling,
            num_spec_tokens=self.num_speculative_tokens,
        )
        if self.policy != "three_queue" and not self.is_for_v0:
            return common
        return replace(
            ThreeQueueConfig.of(common),
            preemption_mode=self.preemption_mode,
            delay_factor=self.delay_factor,
            max_paddings=self.max_paddings,
        )
