"""segue/known_variables.py names all variables SEGUE_… that anything of ours reads, or sets."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys

import pytest

from scripts.write_known_variables import TARGET, module_text
from segue.known_variables import KNOWN_VARIABLES
from tests.source_tree import ROOT

# In a shell's, a Compose or an environment file, and in a Kubernetes manifest.
USED_IN_TEXT = re.compile(
    r"\$\{?(SEGUE_\w+)|^(?:ENV )?\s*(?:- )?(SEGUE_\w+)=|name: (SEGUE_\w+)", re.M
)
TEXTS = ("Dockerfile", "docker-compose.yml", ".env", "scripts/*.sh", "k8s/**/*.yaml")
READERS = {"get", "getenv"}


def read_by_code(text: str) -> set[str]:
    """Of os.environ.get("SEGUE_X"), os.getenv("SEGUE_X") and os.environ["SEGUE_X"]."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Call(func=ast.Attribute(attr=attr), args=[ast.Constant(value=str(name)), *_]):
                found |= {name} if attr in READERS else set()
            case ast.Subscript(slice=ast.Constant(value=str(name))):
                found.add(name)
            case _:
                pass
    return {name for name in found if name.startswith("SEGUE_")}


def test_it_is_current() -> None:
    assert TARGET.read_text(encoding="utf-8") == module_text(), "run `make docs`"


def test_what_the_code_reads_is_known() -> None:
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True)
    read = {
        name
        for path in listed.stdout.split()
        for name in read_by_code((ROOT / path).read_text(encoding="utf-8"))
    }
    assert "SEGUE_CACHE" in read
    assert read <= KNOWN_VARIABLES


@pytest.mark.parametrize("pattern", TEXTS)
def test_what_a_deployment_sets_is_known(pattern: str) -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(ROOT.glob(pattern)))
    used = {next(filter(None, names)) for names in USED_IN_TEXT.findall(text)}
    assert used
    assert used <= KNOWN_VARIABLES


@pytest.mark.timeout(60)
def test_a_service_starts_with_a_warning_and_without_what_is_heavy() -> None:
    """Names of the executor's settings are known where there is no torch and no executor."""
    code = "\n".join(
        (
            "import sys",
            "from segue.config import parse_config",
            "from gateway_svc.config import GatewayConfig",
            "parse_config(GatewayConfig, ['--model', 'm'])",
            "print([m for m in ('torch', 'executor_svc', 'scheduler_svc') if m in sys.modules])",
        )
    )
    environ = {**os.environ, "SEGUE_GPU_MEMORY_UTILISATION": "1", "SEGUE_KV_CACHE_BYTES": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environ, capture_output=True, text=True
    )
    assert done.stdout == "[]\n"
    assert done.stderr.count("warning") == 1
    assert "did you mean SEGUE_GPU_MEMORY_UTILIZATION?" in done.stderr
