"""Creates .venv and installs the locked packages; run by `make setup` and `make serve`.

Knows only the standard library, since it runs before anything is installed. Invariant: a stamp in
.venv names what was installed, and where it still says the same, nothing is done and no network is
used.

    scripts/setup.py            what the services need (requirements.lock)
    scripts/setup.py --dev      what checks and tests need as well (requirements-dev.lock)

torch comes first and by itself: on many machines the lock's torch is a CUDA build of several GB, so
pip is asked what it would install, and where that is no CPU build, PyTorch's own index of CPU
builds is added for this one package. GPU=1 takes what pip takes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
RUNTIME_LOCK = ROOT / "requirements.lock"
DEV_LOCK = ROOT / "requirements-dev.lock"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
INSTALL = ("install", "--no-compile")  # compile_packages does that
CUDA_REQUIREMENTS = ("nvidia-", "cuda-", "triton")


def main() -> int:
    if sys.version_info < (3, 11):  # noqa: UP036 (an older Python may run this very file)
        print(f"setup: Python 3.11 or newer is needed, this is {sys.version.split()[0]}")
        return 1
    locks = [RUNTIME_LOCK, DEV_LOCK] if "--dev" in sys.argv[1:] else [RUNTIME_LOCK]
    missing = [lock for lock in locks if not is_installed(lock)]
    if not missing:
        return 0
    try:
        install(missing)
    except subprocess.CalledProcessError as error:
        print(f"setup: failed: {' '.join(map(str, error.cmd))}")
        return 1
    return 0


def install(locks: list[Path]) -> None:
    if not PYTHON.exists():
        print(f"setup: creating {VENV}", flush=True)
        venv.create(VENV, with_pip=True)
    if RUNTIME_LOCK in locks:
        install_torch()
    for lock in locks:
        print(f"setup: installing {lock.name}", flush=True)
        pip(*INSTALL, "--progress-bar", "on", "-r", str(lock))
        if lock == RUNTIME_LOCK:
            pip(*INSTALL, "--no-deps", "--no-build-isolation", "-e", str(ROOT))
        stamp_path(lock).write_text(stamp(lock))
    compile_packages()


def install_torch() -> None:
    requirement = next(
        line for line in RUNTIME_LOCK.read_text().splitlines() if line.startswith("torch==")
    )
    print(f"setup: installing {requirement}", flush=True)
    installed = installed_torch()
    if wants_gpu() and installed.endswith("+cpu"):
        pip("uninstall", "--yes", "torch")
    elif installed.partition("+")[0] == requirement.partition("==")[2]:
        return
    arguments = [*INSTALL, requirement]
    if not wants_gpu() and not is_cpu_build(requirement):
        print(f"setup: pip would take a CUDA build; taking the CPU build from {CPU_INDEX}")
        arguments = [*INSTALL, "--no-deps", "--index-url", CPU_INDEX, requirement]
    pip(*arguments)


def installed_torch() -> str:
    """Its version, empty where there is none."""
    shown = subprocess.run(
        [PYTHON, "-m", "pip", "show", "torch"], capture_output=True, text=True, check=False
    )
    found = re.search(r"^Version: (\S+)$", shown.stdout, re.MULTILINE)
    return found[1] if found else ""


def is_cpu_build(requirement: str) -> bool:
    """Whether what pip would install here needs no CUDA, by pip's own report."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.json"
        pip("install", "--quiet", "--dry-run", "--no-deps", "--report", str(report), requirement)
        installs = json.loads(report.read_text())["install"]
    metadata = installs[0]["metadata"]
    if metadata["version"].endswith("+cpu"):
        return True
    return not any(
        re.split(r"[\s;<>=!~\[(]", needed)[0].lower().startswith(CUDA_REQUIREMENTS)
        for needed in metadata.get("requires_dist", [])
        if "extra ==" not in needed and not is_for_another_system(needed)
    )


def is_for_another_system(needed: str) -> bool:
    systems = re.findall(r"(?:platform_system|sys_platform)\s*==\s*[\"'](\w+)[\"']", needed)
    return bool(systems) and sys.platform not in {system.lower() for system in systems}


def compile_packages() -> None:
    """To bytecode, on all cores; pip would use one. A file that is not for this Python is no error,
    as it is none to pip."""
    print("setup: compiling", flush=True)
    command = [PYTHON, "-m", "compileall", "-qq", "-j", "0", str(VENV / "lib")]
    subprocess.run(command, check=False)


def pip(*arguments: str) -> None:
    command = [PYTHON, "-m", "pip", "--disable-pip-version-check", *arguments]
    subprocess.run(command, cwd=ROOT, check=True)


def wants_gpu() -> bool:
    return os.environ.get("GPU", "") not in ("", "0")


def is_installed(lock: Path) -> bool:
    path = stamp_path(lock)
    return PYTHON.exists() and path.exists() and path.read_text() == stamp(lock)


def stamp_path(lock: Path) -> Path:
    return VENV / f".installed-{lock.stem}"


def stamp(lock: Path) -> str:
    """What an installation depends on: the lock, torch's build, and where the package lies."""
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()
    return f"{digest} gpu={int(wants_gpu())} {ROOT}\n"


if __name__ == "__main__":
    sys.exit(main())
