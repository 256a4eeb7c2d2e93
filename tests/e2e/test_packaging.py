"""A stranger's clone: it installs what serving needs, once, and serves from anywhere.

Uses the package index, as a stranger does.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.source_tree import ROOT

# Of the environment and the make that run these tests, not of a stranger's shell.
OURS = {"VIRTUAL_ENV", "GPU", "MAKEFLAGS", "MAKELEVEL", "MFLAGS"}
# A few hundred megabytes are unpacked.
pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]


def run(clone: Path, *command: str, **environ: str) -> str:
    """Its output; fails with all of it where the command does."""
    kept = {key: value for key, value in os.environ.items() if key not in OURS}
    done = subprocess.run(
        command,
        cwd=clone,
        env={**kept, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of what is committed, with the runtime lock installed."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git repository: there is nothing to clone")
    path = tmp_path_factory.mktemp("stranger") / "segue"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(path)], check=True)
    run(path, "make", "runtime")
    return path


@pytest.fixture
def serving(clone: Path, hand_model: Path, tmp_path: Path) -> Iterator[str]:
    """The URL of `segue serve`, started in a directory that is not the clone."""
    command = [clone / ".venv" / "bin" / "segue", "serve", "--model", hand_model, "--port", "0"]
    process = subprocess.Popen(
        [*command, "--state-dir", tmp_path / "state", "--num-blocks", "64"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if "| url " in line:
            break
    assert "| url " in lines[-1], "".join(lines)
    yield lines[-1].split()[3]
    process.terminate()
    process.stdout.read()
    process.wait()
    process.stdout.close()


def test_serving_needs_no_developer_package(clone: Path) -> None:
    shown = run(clone, ".venv/bin/python", "-m", "pip", "list", "--format", "freeze")
    names = {line.partition("==")[0] for line in shown.splitlines()}
    assert "torch" in names
    assert names.isdisjoint({"pytest", "ruff", "transformers", "openai", "triton"})


def test_torch_is_a_cpu_build(clone: Path) -> None:
    shown = run(clone, ".venv/bin/python", "-c", "import torch; print(torch.version.cuda)")
    assert shown.strip() == "None"


def test_a_second_time_does_nothing_and_uses_no_network(clone: Path) -> None:
    nowhere = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": "http://127.0.0.1:9/"}
    assert run(clone, "make", "runtime", **nowhere, PIP_FIND_LINKS="", PIP_RETRIES="0") == ""


def test_it_serves_from_any_directory(serving: str) -> None:
    body = {"model": "hand", "prompt": "abc", "max_tokens": 3, "ignore_eos": True}
    answer = httpx.post(f"{serving}/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 3
