"""Configuration of a `three_queue` lane: the common fields, and those that only V0 has.

Knows nothing about flags. Invariant: frozen; what contradicts itself is refused when it is made.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from scheduler_svc.core.scheduler_config import SchedulerConfig

V0_WATERMARK = 0.01


@dataclass(slots=True, frozen=True)
class ThreeQueueConfig(SchedulerConfig):
    """`num_gpu_blocks` counts all blocks: V0 has no null block.

    `preemption_mode` None means recompute, as V0 decides for a group of one sequence.
    `num_lookahead_slots` are slots that a decode gets beyond its known tokens. `max_paddings` is
    early V0's: None is off. `delay_factor` holds prompts back for that many times the last prompt
    step's duration.
    """

    enable_prefix_caching: bool = False
    enable_chunked_prefill: bool = False
    watermark: float = V0_WATERMARK
    max_num_batched_tokens: int = 8192
    preemption_mode: str | None = None
    delay_factor: float = 0.0
    num_lookahead_slots: int = 0
    max_paddings: int | None = None

    def __post_init__(self) -> None:
        SchedulerConfig.__post_init__(self)
        if self.preemption_mode not in (None, "recompute", "swap"):
            raise ValueError(f"preemption mode {self.preemption_mode!r} is not recompute or swap")
        if min(self.delay_factor, self.num_lookahead_slots) < 0:
            raise ValueError("delay_factor and num_lookahead_slots must not be negative")
        chunks_blocks = self.enable_chunked_prefill and self.enable_prefix_caching
        size, budget = self.block_size, self.max_num_batched_tokens
        if chunks_blocks and (budget < size or (self.strict and budget % size)):
            raise ValueError(
                "with chunked prefill and prefix caching, max_num_batched_tokens must be at least "
                "the block size (and, as in V0, a multiple of it)"
            )

    @property
    def swaps(self) -> bool:
        return self.preemption_mode == "swap"

    @property
    def prompt_limit(self) -> int:
        """The longest prompt (with outputs, if it comes back) that is served at all."""
        if self.enable_chunked_prefill:
            return self.max_model_len
        return min(self.max_model_len, self.max_num_batched_tokens)

    @classmethod
    def of(cls, config: SchedulerConfig) -> ThreeQueueConfig:
        """The configuration itself, or the common one with V0's defaults for what it lacks.

        No watermark means V0's own, which it lets nobody choose.
        """
        if isinstance(config, ThreeQueueConfig):
            return config
        common = {field.name: getattr(config, field.name) for field in fields(SchedulerConfig)}
        common["watermark"] = config.watermark or V0_WATERMARK
        return cls(**common)
