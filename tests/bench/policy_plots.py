"""The outcomes as plots, each as PNG and as SVG.

Knows matplotlib, which is a dependency of development only. Invariant: the same outcomes give the
same bytes of SVG: no date, no random ids, letters as paths.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tests.bench.policy_cases import FIFO, POLICIES, RECOMPUTE, SWAP, UNIFIED
from tests.bench.policy_sweeps import (
    CONTINUOUS_AND_FIFO,
    PREEMPTING,
    RATES,
    UTILIZATIONS,
    at_rate,
    at_utilization,
    saturated,
)
from tests.bench.policy_tables import Outcomes

STYLES = {
    FIFO: {"color": "#7f7f7f", "marker": "s"},
    RECOMPUTE: {"color": "#d98c1f", "marker": "^"},
    SWAP: {"color": "#2a8f5a", "marker": "v"},
    UNIFIED: {"color": "#2563c9", "marker": "o"},
}
SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "segue",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
}


def draw(outcomes: Outcomes, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(SETTINGS):
        _save(_throughput(outcomes), directory / "policies-throughput")
        _save(_rates(outcomes), directory / "policies-arrival-rate")
        _save(_utilizations(outcomes), directory / "policies-memory")


def _throughput(outcomes: Outcomes) -> Figure:
    figure, axes = pyplot.subplots(figsize=(7, 2.6), layout="constrained")
    cases = [(policy, outcomes[saturated(policy)].tokens_per_s) for policy in reversed(POLICIES)]
    fifo = outcomes[saturated(FIFO)].tokens_per_s
    colors = [STYLES.get(policy, {"color": "#b5b5b5"})["color"] for policy, _ in cases]
    bars = axes.barh([policy for policy, _ in cases], [rate for _, rate in cases], color=colors)
    axes.bar_label(
        bars, [f"{rate:.0f}  ({rate / fifo:.2f} of fifo)" for _, rate in cases], padding=3
    )
    axes.set_xlim(0, 1.25 * max(rate for _, rate in cases))
    axes.set_xlabel("output tokens/s, saturated")
    axes.grid(visible=False)
    return figure


def _rates(outcomes: Outcomes) -> Figure:
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(8, 3), layout="constrained")
    for policy in CONTINUOUS_AND_FIFO:
        cells = [outcomes[at_rate(policy, rate)] for rate in RATES]
        left.plot(RATES, [c.tokens_per_s for c in cells], label=policy, **STYLES[policy])
        right.plot(RATES, [c.p99_first_token_s for c in cells], **STYLES[policy])
    left.set_ylabel("output tokens/s")
    right.set_ylabel("p99 of the first token, s")
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xticks(RATES, [f"{rate:g}" for rate in RATES])
        _finish(axes, "arrivals, × as recorded")
    left.legend()
    return figure


def _utilizations(outcomes: Outcomes) -> Figure:
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(8, 3), layout="constrained")
    for policy in PREEMPTING:
        cells = [outcomes[at_utilization(policy, one)] for one in UTILIZATIONS]
        left.plot(UTILIZATIONS, [c.tokens_per_s for c in cells], label=policy, **STYLES[policy])
        right.plot(UTILIZATIONS, [c.num_preemptions for c in cells], **STYLES[policy])
    left.set_ylabel("output tokens/s")
    right.set_ylabel("preemptions")
    for axes in (left, right):
        _finish(axes, "gpu_memory_utilization")
    left.legend()
    return figure


def _finish(axes: Axes, label: str) -> None:
    axes.set_xlabel(label)
    axes.set_ylim(bottom=0)


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    figure.savefig(path.with_suffix(".png"), dpi=150, metadata={"Software": None})
    pyplot.close(figure)
