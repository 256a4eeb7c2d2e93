"""What differs between worlds: sizes, times, and what of it a seed draws.

Knows nothing about events. Invariant: frozen; drawn from the world's own generator.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, fields

from scheduler_svc.config import SchedulerServiceConfig
from scheduler_svc.core.engine_core import EngineCore
from scheduler_svc.core.engine_state import EngineConfig, MakePolicy
from scheduler_svc.core.scheduler_config import SchedulerConfig
from scheduler_svc.core.unified.scheduler import UnifiedScheduler
from scheduler_svc.policies import BUILT_IN
from segue.types import Capacity
from segue.wire import WireCodec
from tests.sim.live_settings import SimulatedConfiguration

LEASE_TTL_MS = 300
TICK_MS = 100
EXECUTOR_GRACE_MS = 500
STEP_TIMEOUT_MS = 900
ORPHAN_TIMEOUT_MS = 900
FINISHED_TTL_MS = 8000  # longer than most worlds; in some, short enough to see it end
SHORT_FINISHED_TTL_MS = 1200
NAMES: dict[MakePolicy, str] = {policy: name for name, policy in BUILT_IN.items()}


@dataclass(slots=True, frozen=True)
class Settings:
    engine: EngineConfig
    num_executors: int
    num_gateways: int
    num_schedulers: int
    num_blocks: tuple[int, ...]  # of each executor
    is_sampling_repeatable: bool
    may_lose_redis: bool
    vocab_size: int
    make_policy: MakePolicy = UnifiedScheduler

    def new_core(self) -> EngineCore:
        takes_budgets = self.make_policy is UnifiedScheduler
        configuration = SimulatedConfiguration(self.engine, takes_budgets=takes_budgets)
        return EngineCore(self.engine, WireCodec(), self.make_policy, configuration)

    def digest(self) -> str:
        """As the service would compute it, of what is set here."""
        config = self.engine.scheduler
        names = {field.name for field in fields(SchedulerServiceConfig)} - {"policy"}
        values = {f.name: getattr(config, f.name) for f in fields(config) if f.name in names}
        policy = NAMES.get(self.make_policy, repr(self.make_policy))
        return SchedulerServiceConfig(
            policy=policy, scheduling_policy=config.policy, **values
        ).digest()

    def model_lens(self) -> list[int]:
        """How long a request can get, on each executor."""
        config = self.engine.scheduler
        capacities = [Capacity(blocks, config.block_size) for blocks in self.num_blocks]
        return [config.for_capacity(capacity).max_model_len for capacity in capacities]


Draw = Callable[[random.Random], Settings]


def draw_settings(rng: random.Random) -> Settings:
    num_executors = rng.choice((1, 1, 2))
    block_size = rng.choice((2, 4))
    longest = rng.choice((24, 32, 48, 64))
    smallest = -(-longest // block_size) + 1
    num_blocks = smallest + rng.choice((0, 1, 4, 16))
    max_num_seqs = rng.choice((2, 4, 6))
    scheduler = SchedulerConfig(
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max(max_num_seqs, rng.choice((6, 12, 24, 64))),
        max_model_len=longest,
        policy=rng.choice(("fcfs", "fcfs", "priority")),
        long_prefill_token_threshold=rng.choice((0, 0, 3, 5)),
        enable_prefix_caching=rng.random() < 0.9,
        async_scheduling=rng.random() < 0.85,
        watermark=rng.choice((0.0, 0.0, 0.1)),
    )
    return Settings(
        engine=EngineConfig(
            scheduler,
            depth=2 if scheduler.async_scheduling else 1,
            max_queued_requests=rng.choice((1000, 1000, 6)),
            finished_ttl_ms=rng.choice((FINISHED_TTL_MS, SHORT_FINISHED_TTL_MS)),
            max_lane_losses=rng.choice((1000, 1000, 3)),
        ),
        num_executors=num_executors,
        num_gateways=rng.choice((1, 2)),
        num_schedulers=rng.choice((1, 2, 2)),
        num_blocks=tuple(num_blocks + rng.choice((0, 0, 0, -3, 5)) for _ in range(num_executors)),
        is_sampling_repeatable=rng.random() < 0.5,
        may_lose_redis=rng.random() < 0.5,
        vocab_size=rng.choice((4, 16, 40)),
    )
