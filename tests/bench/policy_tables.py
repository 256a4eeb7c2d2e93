"""The outcomes of the cases as tables, and as JSON.

Knows what is told of an outcome; runs nothing. Invariant: each row names what it was measured on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tests.bench.cost_model import CostModel
from tests.bench.lane_simulation import Outcome
from tests.bench.policy_cases import FIFO, FIFO_TOLD, MAX_NUM_SEQS, POLICIES, UNIFIED, Case
from tests.bench.policy_sweeps import (
    CONTINUOUS_AND_FIFO,
    ELSEWHERE,
    PREEMPTING,
    RATES,
    SATURATING,
    UTILIZATIONS,
    at_rate,
    at_utilization,
    elsewhere,
    saturated,
)
from tests.bench.request_trace import read_trace

Outcomes = Mapping[Case, Outcome]


def print_tables(outcomes: Outcomes) -> None:
    print_machine(CostModel())
    print_saturated(outcomes)
    print_rates(outcomes)
    print_utilizations(outcomes)
    print_work(outcomes, UTILIZATIONS[0])
    print_elsewhere(outcomes)


def print_machine(costs: CostModel) -> None:
    trace = read_trace()
    print(
        f"{costs.model.name} on {costs.gpu.name}: step = {costs.overhead_s * 1e3:.1f} ms + "
        f"max({costs.token_s * 1e6:.1f} µs × tokens, {costs.weights_s * 1e3:.1f} ms) + "
        f"{costs.context_token_s * 1e6:.3f} µs × context + "
        f"{costs.swapped_block_s * 1e6:.0f} µs × swapped blocks"
    )
    print(
        f"at gpu_memory_utilization 0.9: {costs.num_blocks(0.9):,} blocks of {costs.block_size} "
        f"tokens; at most {MAX_NUM_SEQS} requests at a time"
    )
    print(
        f"load: {len(trace):,} requests of the trace, "
        f"{sum(one.num_prompt_tokens for one in trace):,} prompt tokens, "
        f"{sum(one.num_output_tokens for one in trace):,} output tokens"
    )


def print_saturated(outcomes: Outcomes) -> None:
    fifo, told = outcomes[saturated(FIFO)], outcomes[saturated(FIFO_TOLD)]
    print(f"\nsaturated (arrivals × {SATURATING:g})")
    _print_row("", "tok/s", "of fifo", "of known", "ttft p99", "e2e p99", "preempt", "running")
    for policy in POLICIES:
        one = outcomes[saturated(policy)]
        _print_row(
            policy,
            f"{one.tokens_per_s:.0f}",
            f"{one.tokens_per_s / fifo.tokens_per_s:.2f}",
            f"{one.tokens_per_s / told.tokens_per_s:.2f}",
            f"{one.p99_first_token_s:.1f} s",
            f"{one.p99_latency_s:.1f} s",
            one.num_preemptions,
            f"{one.mean_running:.0f}",
        )


def print_work(outcomes: Outcomes, utilization: float) -> None:
    """Where memory is short: what each did for it."""
    print(f"\nthe work at gpu_memory_utilization {utilization:g} (saturated)")
    _print_row("", "tok/s", "preempt", "steps", "computed", "again", "blocks out", "copying")
    for policy in PREEMPTING:
        one = outcomes[at_utilization(policy, utilization)]
        _print_row(
            policy,
            f"{one.tokens_per_s:.0f}",
            one.num_preemptions,
            one.num_steps,
            one.num_computed_tokens,
            one.num_computed_again,
            one.num_swapped_out_blocks,
            f"{one.copying_s * 1e3:.0f} ms",
        )


def print_rates(outcomes: Outcomes) -> None:
    print("\ntok/s, and p99 of the first token in s, by how fast requests arrive")
    _print_row("", *(f"× {rate:g}" for rate in RATES))
    for policy in CONTINUOUS_AND_FIFO:
        cells = [outcomes[at_rate(policy, rate)] for rate in RATES]
        _print_row(policy, *(f"{c.tokens_per_s:.0f} {c.p99_first_token_s:.1f}" for c in cells))


def print_utilizations(outcomes: Outcomes) -> None:
    print("\ntok/s, and preemptions, by gpu_memory_utilization (saturated)")
    _print_row("", *UTILIZATIONS)
    costs = CostModel()
    _print_row("blocks", *(costs.num_blocks(one) for one in UTILIZATIONS))
    for policy in PREEMPTING:
        cells = [outcomes[at_utilization(policy, one)] for one in UTILIZATIONS]
        _print_row(policy, *(f"{c.tokens_per_s:.0f} {c.num_preemptions}" for c in cells))


def print_elsewhere(outcomes: Outcomes) -> None:
    print("\nunified's factor under other costs (saturated)")
    _print_row("", "tok/s", "of fifo", "of known")
    for name, costs in ELSEWHERE.items():
        unified = outcomes[elsewhere(UNIFIED, costs)].tokens_per_s
        factors = [
            f"{unified / outcomes[elsewhere(policy, costs)].tokens_per_s:.2f}"
            for policy in (FIFO, FIFO_TOLD)
        ]
        _print_row(name, f"{unified:.0f}", *factors)


def report(outcomes: Outcomes) -> list[dict[str, Any]]:
    return [
        asdict(case)
        | {
            "tokens_per_s": round(one.tokens_per_s, 1),
            "ttft_s_p99": round(one.p99_first_token_s, 3),
            "latency_s_p99": round(one.p99_latency_s, 3),
            "preemptions": one.num_preemptions,
            "mean_running": round(one.mean_running, 1),
            "steps": one.num_steps,
            "computed_tokens": one.num_computed_tokens,
            "computed_again": one.num_computed_again,
            "swapped_out_blocks": one.num_swapped_out_blocks,
            "swapped_in_blocks": one.num_swapped_in_blocks,
        }
        for case, one in outcomes.items()
    ]


def _print_row(title: str, *cells: object) -> None:
    print(f"{title:24}" + "".join(f"{cell!s:>11}" for cell in cells))
