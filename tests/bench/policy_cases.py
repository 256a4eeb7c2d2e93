"""One policy with its configuration, on one load and one machine: a case, and how it turned out.

Knows what is compared; prints nothing. Invariant: a case is a value and its outcome a function of
it, so cases can run in any order and in other processes.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from scheduler_svc.core.engine_state import MakePolicy
from scheduler_svc.core.scheduler_config import SchedulerConfig
from scheduler_svc.core.three_queue.config import V0_WATERMARK, ThreeQueueConfig
from scheduler_svc.core.three_queue.scheduler import ThreeQueueScheduler
from scheduler_svc.core.unified.scheduler import UnifiedScheduler
from tests.bench.cost_model import GIB, CostModel
from tests.bench.fifo_batching import FifoBatching
from tests.bench.lane_simulation import LaneSimulation, Outcome
from tests.bench.request_trace import make_load, read_trace

MAX_NUM_SEQS = 256
MAX_MODEL_LEN = 8192  # V0's budget too: without chunks, a step has to hold the longest prompt
SWAP_SPACE_BYTES = 4 * GIB  # V0's default

FIFO, FIFO_TOLD = "fifo", "fifo, lengths known"
RECOMPUTE, SWAP, UNIFIED = "three_queue recompute", "three_queue swap", "unified"
POLICIES: dict[str, MakePolicy] = {
    FIFO: FifoBatching,
    FIFO_TOLD: FifoBatching,
    RECOMPUTE: ThreeQueueScheduler,
    SWAP: ThreeQueueScheduler,
    UNIFIED: UnifiedScheduler,
}


@dataclass(slots=True, frozen=True)
class Case:
    """`rate`: how many times as fast as recorded requests arrive."""

    policy: str
    rate: float
    utilization: float = 0.9
    costs: CostModel = field(default_factory=CostModel)
    num_requests: int | None = None

    def config(self) -> SchedulerConfig:
        """The defaults of each policy as vLLM has them; one step in flight for all."""
        common = SchedulerConfig(
            block_size=self.costs.block_size,
            num_gpu_blocks=self.costs.num_blocks(self.utilization),
            max_num_seqs=MAX_NUM_SEQS,
            max_model_len=MAX_MODEL_LEN,
            async_scheduling=False,
        )
        if self.policy not in (RECOMPUTE, SWAP):
            return common
        return ThreeQueueConfig(
            block_size=common.block_size,
            num_gpu_blocks=common.num_gpu_blocks,
            num_cpu_blocks=SWAP_SPACE_BYTES // self.costs.block_bytes,
            max_num_seqs=MAX_NUM_SEQS,
            max_model_len=MAX_MODEL_LEN,
            watermark=V0_WATERMARK,
            preemption_mode="swap" if self.policy == SWAP else "recompute",
        )

    def simulation(self) -> LaneSimulation:
        trace = read_trace(limit=self.num_requests)
        load = make_load(trace, self.rate, tells_lengths=self.policy == FIFO_TOLD)
        return LaneSimulation(POLICIES[self.policy], self.config(), self.costs, load)

    def run(self) -> Outcome:
        return self.simulation().run()


def run_all(cases: Iterable[Case]) -> dict[Case, Outcome]:
    """Each once, on all cores."""
    distinct = list(dict.fromkeys(cases))
    with ProcessPoolExecutor() as pool:
        return dict(zip(distinct, pool.map(Case.run, distinct), strict=True))
