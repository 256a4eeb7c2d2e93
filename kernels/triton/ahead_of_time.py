"""Compiles every kernel for NVIDIA's GPUs without one, and reports what each takes of the machine.

    python -m kernels.triton.ahead_of_time [--targets 80,90] [--only NAME,…] [--json]

Knows the shapes in use (`compiled_variants`) and the tools in Triton's wheel. Invariant: it takes
what the wrappers would launch, aligned pointers included; where it runs interpreted, it says so and
stops.
"""

# pyright: standard

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.triton.compiled_variants import Variant, all_variants

RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")
WARP_SIZE = 32


@dataclass(slots=True, frozen=True)
class CompiledKernel:
    """`spilled_bytes`: of each thread's stack, where registers go that there is no room for."""

    name: str
    target: int
    registers: int
    spilled_bytes: int
    shared_bytes: int
    uses_tensor_cores: bool


def compile_variant(variant: Variant, target: int) -> CompiledKernel:
    compiled: Any = triton.compile(
        ASTSource(fn=variant.kernel, **_source_arguments(variant)),
        target=GPUTarget("cuda", target, WARP_SIZE),
        options={"num_warps": variant.num_warps, "num_stages": variant.num_stages},
    )
    registers, stack, local = _resources(compiled.asm["cubin"])
    ptx: str = compiled.asm["ptx"]
    return CompiledKernel(
        variant.name,
        target,
        registers,
        stack + local,
        int(compiled.metadata.shared),
        "mma.sync" in ptx or "wgmma" in ptx,
    )


def _source_arguments(variant: Variant) -> dict[str, Any]:
    signature: dict[str, str] = {}
    aligned: dict[tuple[int, ...], list[list[Any]]] = {}
    for index, name in enumerate(variant.kernel.arg_names):
        if name in variant.constants:
            signature[name] = "constexpr"
            continue
        signature[name] = variant.type_of(name)
        # As the launcher finds them: torch's memory, and sizes of whole heads.
        if name.endswith(("_ptr", "_stride", "_features")):
            aligned[(index,)] = [["tt.divisibility", 16]]
    return {"signature": signature, "constexprs": variant.constants, "attrs": aligned}


def _resources(cubin: bytes) -> tuple[int, int, int]:
    """Registers, stack and local memory of one thread, by cuobjdump."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [_cuobjdump(), "--dump-resource-usage", file.name]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = RESOURCES.search(shown)
    assert found is not None, shown
    return int(found[1]), int(found[2]), int(found[4])


def _cuobjdump() -> str:
    bundled = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    found = str(bundled) if bundled.exists() else shutil.which("cuobjdump")
    assert found is not None, "there is no cuobjdump, in triton's wheel or on PATH"
    return found


def print_table(kernels: Iterable[CompiledKernel]) -> None:
    print(
        f"{'kernel':<58}{'sm':>4}{'registers':>11}{'spilled B':>11}{'shared B':>10}  tensor cores"
    )
    for one in kernels:
        print(
            f"{one.name:<58}{one.target:>4}{one.registers:>11}{one.spilled_bytes:>11}"
            f"{one.shared_bytes:>10}  {'yes' if one.uses_tensor_cores else ''}",
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--targets", default="80,90", help="compute capabilities (default 80,90)")
    parser.add_argument("--only", default="", help="parts of names, comma separated")
    parser.add_argument("--json", action="store_true", help="print JSON, not a table")
    arguments = parser.parse_args()
    if os.environ.get("TRITON_INTERPRET", "0") != "0":
        print("TRITON_INTERPRET is set: there is nothing to compile")
        return 2
    targets, parts = arguments.targets.split(","), arguments.only.split(",")
    if not all(target.isdecimal() for target in targets):
        parser.error(f"--targets {arguments.targets}: numbers are wanted, as in 80,90")
    variants = [one for one in all_variants() if any(part in one.name for part in parts)]
    if not variants:
        parser.error(f"--only {arguments.only}: no kernel has this in its name")
    compiled = (compile_variant(variant, int(target)) for target in targets for variant in variants)
    if arguments.json:
        print(json.dumps([asdict(one) for one in compiled]))
    else:
        print_table(compiled)
    return 0


if __name__ == "__main__":
    sys.exit(main())
