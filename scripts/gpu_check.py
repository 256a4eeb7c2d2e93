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
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

PARTS = ("checks", "limits", "kernels", "serving")
Rows = list[dict[str, Any]]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="on a CPU, with tiny shapes")
    parser.add_argument("--out", type=Path, default=Path("."), help="where the two files go")
    parser.add_argument(
        "--seconds", type=float, default=480.0, help="no part runs for longer than this"
    )
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
    report = empty_report(arguments.smoke)
    hard_stop = threading.Timer(arguments.seconds, give_up, (report, arguments.out))
    hard_stop.daemon = True
    hard_stop.start()
    run_all(report, deadline=time.monotonic() + arguments.seconds)
    hard_stop.cancel()
    write(report, arguments.out)
    return 1 if report["failures"] else 0


def empty_report(is_smoke: bool) -> dict[str, Any]:
    parts = dict.fromkeys(PARTS)
    return {"machine": machine(), "is_smoke": is_smoke, **parts, "failures": {}, "seconds": 0.0}


def give_up(report: dict[str, Any], out: Path) -> None:
    """Time is up, and a part hangs: what there is is written, and the process ends with it."""
    late = next((name for name in PARTS if report[name] is None), PARTS[-1])
    write(report | {"failures": {**report["failures"], late: "had not ended in time"}}, out)
    os._exit(1)


def write(report: dict[str, Any], out: Path) -> None:
    (out / "gpu_check.json").write_text(json.dumps(report, indent=1) + "\n")
    table = as_table(report)
    (out / "gpu_check.md").write_text(table)
    print(table, flush=True)


def run_all(report: dict[str, Any], deadline: float) -> None:
    """Fills the report in, part by part."""
    from scripts.gpu_check_kernels import check_kernels
    from scripts.gpu_check_serving import measure_serving
    from scripts.gpu_check_times import measure_limits, time_kernels

    is_smoke: bool = report["is_smoke"]
    failures: dict[str, str] = report["failures"]
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

    report["checks"] = part("checks", lambda: check_kernels(is_smoke), 0)
    report["limits"] = part("limits", lambda: measure_limits(is_smoke), 0)
    limits = report["limits"]
    report["kernels"] = part("kernels", lambda: time_kernels(limits, is_smoke), 30)
    left = deadline - time.monotonic() - 30
    report["serving"] = part("serving", lambda: measure_serving(is_smoke, left), 120)
    failures |= {
        f"check {row['kernel']}": row["error"] for row in report["checks"] or [] if row["error"]
    }
    report["seconds"] = round(time.monotonic() - started, 1)


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
    for title in PARTS:
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
