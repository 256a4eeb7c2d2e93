"""Figures as a table, as JSON and as a plot. Knows no server.

Invariant: the JSON holds all that the table and the plot show.
"""

from __future__ import annotations

import json
import platform
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from segue.commands.text_table import text_table

TIMES = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms")
COLUMNS = (
    *("load", "ok", "failed", "req/s", "out tok/s"),
    *(f"{name.removesuffix('_ms')} {share}" for name in TIMES for share in ("p50", "p99")),
)


class NoPlots(Exception):
    """The message is one readable line."""


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A heading, and one line for each load; times in milliseconds."""
    return text_table(COLUMNS, [_cells(row) for row in rows])


def _cells(row: dict[str, Any]) -> list[str]:
    times = [str(row.get(name, {}).get(share, "–")) for name in TIMES for share in ("p50", "p99")]
    rates = [str(row.get(name, "–")) for name in ("requests_per_s", "output_tokens_per_s")]
    return [row["load"], str(row["requests"]), str(row["failed"]), *rates, *times]


def failures(messages: Sequence[str]) -> list[str]:
    """Each kind once, the commonest first."""
    return [f"{count} × {message}" for message, count in Counter(messages).most_common(5)]


def write_json(path: Path, about: dict[str, Any], rows: Sequence[dict[str, Any]]) -> None:
    machine = {"python": platform.python_version(), "machine": platform.machine()}
    content = {"about": about | machine, "loads": rows}
    path.write_text(json.dumps(content, indent=2) + "\n")


def plot(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Throughput beside latency, over the loads. Raises NoPlots without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise NoPlots("--plot needs matplotlib: pip install 'segue[bench]'") from error
    shown = [row for row in rows if row["requests"]]
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    labels = [row["load"] for row in shown]
    left.bar(labels, [row["output_tokens_per_s"] for row in shown])
    left.set_ylabel("output tokens/s")
    for name, share in (
        ("ttft_ms", "p50"),
        ("ttft_ms", "p99"),
        ("itl_ms", "p50"),
        ("itl_ms", "p99"),
    ):
        values = [row[name].get(share, 0.0) for row in shown]
        right.plot(labels, values, marker="o", label=f"{name.removesuffix('_ms')} {share}")
    right.set_ylabel("ms")
    right.set_yscale("log")
    right.legend()
    figure.savefig(str(path))  # pyright: ignore[reportUnknownMemberType]
