"""Configuration of a lane's scheduler, with vLLM's names, and what follows from it.

Knows nothing about flags (the service's config maps them). Invariant: frozen; a policy never reads
anything else to decide.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from segue.types import Capacity

# What `unified` reads anew in each step and nothing that is stored depends on: another value counts
# from the next step on, whatever is in flight. With fewer seats than run, nobody is admitted.
CHANGEABLE = frozenset(
    {
        "max_num_seqs",
        "max_num_batched_tokens",
        "long_prefill_token_threshold",
        "watermark",
        "priority_aging_ms",
    }
)


@dataclass(slots=True, frozen=True)
class SchedulerConfig:
    """`num_gpu_blocks` includes block 0, the null block. Limits that are None follow from others.

    `strict` reproduces what vLLM does where that is a fault (docs/decisions); the default repairs.
    """

    block_size: int = 16
    num_gpu_blocks: int = 1024
    num_cpu_blocks: int = 0
    enable_prefix_caching: bool = True
    max_num_seqs: int = 128
    max_num_active_seqs: int | None = None
    max_num_batched_tokens: int = 2048
    max_num_scheduled_tokens: int | None = None
    max_model_len: int = 8192
    policy: str = "fcfs"
    preempt_for_admission: bool = False
    priority_aging_ms: int = 0
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    long_prefill_token_threshold_adaptive: bool = False
    scheduler_reserve_full_isl: bool = True
    watermark: float = 0.0
    async_scheduling: bool = True
    num_spec_tokens: int = 0
    num_lookahead_tokens: int = 0
    draft_slots_per_request: int = 0
    eagle_drop_last_block: bool = False
    max_concurrent_batches: int | None = None
    pipeline_parallel_size: int = 1
    v2_model_runner: bool = False
    max_loras: int = 0
    max_loras_stops_admission: bool = False
    encoder_compute_budget: int = 0
    encoder_cache_size: int = 0
    disable_chunked_mm_input: bool = False
    throttles_prefills: bool = False
    kv_load_failure_policy: str = "recompute"
    defer_block_free: bool = False
    drop_stale_output_on_preemption: bool = False
    strict: bool = False

    def __post_init__(self) -> None:
        if self.policy not in ("fcfs", "priority"):
            raise ValueError(f"scheduling policy {self.policy!r} is neither fcfs nor priority")
        if self.priority_aging_ms < 0:
            raise ValueError("priority ageing must not be negative")
        if self.policy != "priority" and (self.preempt_for_admission or self.priority_aging_ms):
            raise ValueError(
                "preempt_for_admission and priority ageing need scheduling by priority"
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError("max_num_batched_tokens must be at least max_num_seqs")
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise ValueError("without chunked prefill, a step must have room for max_model_len")

    @property
    def num_usable_blocks(self) -> int:
        return self.num_gpu_blocks - 1

    @property
    def token_budget(self) -> int:
        return self.max_num_scheduled_tokens or self.max_num_batched_tokens

    @property
    def max_steps_in_flight(self) -> int:
        return self.max_concurrent_batches or (2 if self.async_scheduling else 1)

    @property
    def staggers_decodes(self) -> bool:
        return self.async_scheduling and self.v2_model_runner and self.pipeline_parallel_size > 1

    @property
    def num_watermark_blocks(self) -> int:
        return int(self.watermark * self.num_gpu_blocks)

    def for_capacity(self, capacity: Capacity) -> SchedulerConfig:
        """The same rules for what an executor can hold: no request may outgrow all its blocks."""
        usable_tokens = (capacity.num_blocks - 1) * capacity.block_size
        limits = [self.max_model_len, usable_tokens]
        if capacity.max_model_len:
            limits.append(capacity.max_model_len)
        return replace(
            self,
            num_gpu_blocks=capacity.num_blocks,
            num_cpu_blocks=capacity.num_cpu_blocks,
            max_model_len=min(limits),
        )
