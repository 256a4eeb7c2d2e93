"""Which cases each comparison of policies is made of.

Knows nothing about outcomes. Invariant: the same case in two comparisons is equal, so it is run
once.
"""

from __future__ import annotations

from tests.bench.cost_model import H100_80GB, CostModel
from tests.bench.policy_cases import FIFO, FIFO_TOLD, POLICIES, RECOMPUTE, SWAP, UNIFIED, Case

SATURATING = 8.0  # as recorded, this machine just about keeps up
RATES = (1.0, 2.0, SATURATING)
UTILIZATIONS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.98)
PREEMPTING = (RECOMPUTE, SWAP, UNIFIED)
CONTINUOUS_AND_FIFO = (FIFO, *PREEMPTING)

ELSEWHERE = {
    "a step takes 10 ms more": CostModel(overhead_s=0.013),
    H100_80GB.name: CostModel(gpu=H100_80GB),
}
COMPARED_ELSEWHERE = (FIFO, FIFO_TOLD, UNIFIED)
RATE_ELSEWHERE = 24.0  # saturates the quickest of them


def saturated(policy: str) -> Case:
    return Case(policy, SATURATING)


def at_rate(policy: str, rate: float) -> Case:
    return Case(policy, rate)


def at_utilization(policy: str, utilization: float) -> Case:
    return Case(policy, SATURATING, utilization)


def elsewhere(policy: str, costs: CostModel) -> Case:
    return Case(policy, RATE_ELSEWHERE, costs=costs)


def all_cases() -> list[Case]:
    return [
        *(saturated(policy) for policy in POLICIES),
        *(at_rate(policy, rate) for policy in CONTINUOUS_AND_FIFO for rate in RATES),
        *(at_utilization(policy, one) for policy in PREEMPTING for one in UTILIZATIONS),
        *(elsewhere(p, costs) for p in COMPARED_ELSEWHERE for costs in ELSEWHERE.values()),
    ]
