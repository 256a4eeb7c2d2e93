"""On a machine with a GPU: is every kernel right, how near is it to its limit, how fast is serving?

    python scripts/gpu_check.py [--smoke] [--out DIR] [--seconds 480]

Checks each kernel against `kernels.reference`, times it against what this very card was seen to do
(bytes over its copy bandwidth, FLOPs over its matmul rate) and attention against torch's own, then
serves a model of Llama-3-8B's shape with random weights through gateway, scheduler, gRPC and
executor. Writes gpu_check.json and gpu_check.md. Nothing comes from the network.
`--smoke`: all of it on a CPU, kernels interpreted and shapes tiny; its times mean nothing.
Invariant: a part that fails is reported, and the others still run; the exit code says so.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

Rows = list[dict[str, Any]]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="on a CPU, with tiny shapes")
    parser.add_argument("--out", type=Path, default=Path("."), help="where the two files go")
    parser.add_argument("--seconds", type=float, default=480.0, help="leave out what would be late")
    arguments = parser.parse_args()
    if arguments.smoke:
        os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import torch

    if not arguments.smoke and not torch.cuda.is_available():
        print("gpu_check: torch finds no GPU here; --smoke tries all of it on a CPU")
        return 2
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        print(f"gpu_check: --out {arguments.out}: {error.strerror}")
        return 2
    report = run_all(is_smoke=arguments.smoke, deadline=time.monotonic() + arguments.seconds)
    (arguments.out / "gpu_check.json").write_text(json.dumps(report, indent=1) + "\n")
    table = as_table(report)
    (arguments.out / "gpu_check.md").write_text(table)
    print(table)
    return 1 if report["failures"] else 0


def run_all(is_smoke: bool, deadline: float) -> dict[str, Any]:
    from scripts.gpu_check_kernels import check_kernels
    from scripts.gpu_check_serving import measure_serving
    from scripts.gpu_check_times import measure_limits, time_kernels

    failures: dict[str, str] = {}
    started = time.monotonic()

    def part(name: str, run: Callable[[], Any], seconds_needed: float) -> Any:
        if time.monotonic() + seconds_needed > deadline:
            failures[name] = "left out: no time was left"
            return None
        try:
            return run()
        except Exception:  # noqa: BLE001 (whatever it is, the other parts still run)
            failures[name] = traceback.format_exc(limit=8)
            return None

    report: dict[str, Any] = {"machine": machine(), "is_smoke": is_smoke}
    report["checks"] = part("checks", lambda: check_kernels(is_smoke), 0)
    report["limits"] = part("limits", lambda: measure_limits(is_smoke), 0)
    limits = report["limits"]
    report["kernels"] = part("kernels", lambda: time_kernels(limits, is_smoke), 30)
    left = deadline - time.monotonic() - 30
    report["serving"] = part("serving", lambda: measure_serving(is_smoke, left), 120)
    failures |= {
        f"check {row['kernel']}": row["error"] for row in report["checks"] or [] if row["error"]
    }
    report["failures"] = failures
    report["seconds"] = round(time.monotonic() - started, 1)
    return report


def machine() -> dict[str, Any]:
    import torch
    import triton

    has_gpu = torch.cuda.is_available()
    untyped: Any = torch
    return {
        "device": torch.cuda.get_device_name() if has_gpu else "CPU, kernels interpreted",
        "cuda": untyped.version.cuda,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
    }


def as_table(report: dict[str, Any]) -> str:
    lines = [f"# gpu_check: {report['machine']['device']}", ""]
    if report["is_smoke"]:
        lines += [
            "A smoke run: kernels were interpreted on a CPU, and no time below means a thing.",
            "",
        ]
    lines.append(", ".join(f"{name} {value}" for name, value in report["machine"].items()))
    for title in ("checks", "limits", "kernels", "serving"):
        rows = report[title]
        if rows:
            lines += ["", f"## {title}", "", *_markdown(rows if isinstance(rows, list) else [rows])]
    for name, error in report["failures"].items():
        lines += ["", f"## failed: {name}", "", "```", error.rstrip(), "```"]
    return "\n".join([*lines, "", f"{report['seconds']} s in all", ""])


def _markdown(rows: Rows) -> list[str]:
    names = list(rows[0])
    head = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    return head + ["| " + " | ".join(str(row[name]) for name in names) + " |" for row in rows]


if __name__ == "__main__":
    sys.exit(main())
