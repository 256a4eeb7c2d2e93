"""What only a service can judge, asked of it as a program: torch and compilers, and a Redis server.

Knows module names and the JSON that they print; imports no service. Invariant: a program that fails
is a finding with its last line.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from segue.doctor.finding import Finding, fail, ok, warn

TIMEOUT_S = 120
EXECUTOR_EXTRA = "pip install 'segue[executor]'"


class NotAnswered(Exception):
    """One line."""


def ask(module: str, *flags: str) -> dict[str, Any]:
    """The JSON object that `python -m module` prints."""
    command = [sys.executable, "-m", module, *flags]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        if done.returncode:
            raise NotAnswered(done.stderr.strip().rpartition("\n")[2] or f"exit {done.returncode}")
        return json.loads(done.stdout)
    except subprocess.TimeoutExpired as error:
        raise NotAnswered(f"no answer in {TIMEOUT_S} s") from error
    except (OSError, ValueError) as error:
        raise NotAnswered(f"{module}: {error}") from error


def check_executor() -> list[Finding]:
    """torch, the GPU and the compiler."""
    try:
        seen = ask("executor_svc.machine")
    except NotAnswered as error:
        return [fail("torch", str(error), "repair it, or on a busy machine ask again")]
    if seen["torch"] is None:
        text = "not installed: schedulers and gateways run here, and no executor"
        return [warn("torch", text, EXECUTOR_EXTRA)]
    return [ok("torch", seen["torch"]), gpu_finding(seen), compiler_finding(seen)]


def gpu_finding(seen: dict[str, Any]) -> Finding:
    gpus = ", ".join(seen["gpus"])
    if gpus and not seen["has_triton"]:
        return warn("gpu", f"{gpus}, without Triton", "pip install 'segue[gpu]'")
    if gpus:
        return ok("gpu", gpus)
    if seen["has_nvidia_device"]:
        text = "there is one, and torch can not use it"
        return warn("gpu", text, "install torch's CUDA build: pip install 'segue[gpu]'")
    return ok("gpu", "none: the CPU computes")


def compiler_finding(seen: dict[str, Any]) -> Finding:
    if seen["compiler"] is None:
        text = "none: torch's kernels compute, which are slower"
        return warn("compiler", text, "install g++ or clang++, or name one in CXX")
    if seen["library"] is None:
        command = f"python -m {seen['build_module']}"
        text = f"{seen['compiler']}; the CPU kernels are compiled at the first start"
        return warn("compiler", text, f"{command} does it now")
    return ok("compiler", f"{seen['compiler']}; kernels in {seen['library']}")


def check_redis_server(url: str, durability: str) -> tuple[list[Finding], float | None]:
    """What the scheduler says of it, and its clock."""
    try:
        seen = ask("scheduler_svc.check_redis", "--redis-url", url, "--durability", durability)
    except NotAnswered as error:
        return [fail("redis", str(error), "start it, or correct --redis-url")], None
    if seen["error"]:
        return [fail("redis", seen["error"], "change its configuration")], None
    if seen["warnings"]:
        advice = "set appendonly yes and appendfsync everysec (docs/state.md)"
        return [warn("redis", text, advice) for text in seen["warnings"]], seen["now_s"]
    text = f"{seen['product']} {seen['version']}, {seen['persistence']}"
    return [ok("redis", text)], seen["now_s"]
