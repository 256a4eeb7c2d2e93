"""The wheel in an environment of its own: every command, every service, and no `kernels`.

Uses no network: packages are borrowed from the environment that runs the tests.
"""

from __future__ import annotations

import pkgutil
import subprocess
import sys
import zipfile
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

import segue.commands
from segue.version import VERSION
from tests.source_tree import ROOT
from tests.wheel import Installed, build_wheel, install

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]

COMMANDS = sorted(
    module.name
    for module in pkgutil.iter_modules(segue.commands.__path__)
    if "\ndef register(" in (ROOT / "segue/commands" / f"{module.name}.py").read_text()
)
BIG = ("torch", "functorch", "safetensors", "triton", "nvidia", "transformers")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def whole(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(wheel, tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def small(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """As `pip install segue` leaves it: nothing of the extra `executor`."""
    return install(wheel, tmp_path_factory.mktemp("small"), without=BIG)


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_it_installs_nothing_called_kernels(wheel: Path) -> None:
    assert not {name for name in names(wheel) if name.startswith("kernels")}
    assert "segue_kernels/reference.py" in names(wheel)


def test_it_holds_every_file_of_the_packages(wheel: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "segue", "gateway_svc", "scheduler_svc", "executor_svc", "kernels"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    ours = {name.replace("kernels/", "segue_kernels/", 1) for name in listed}
    assert len(ours) > 100
    assert ours - names(wheel) == set()


def test_every_package_is_typed(wheel: Path) -> None:
    tops = {name.partition("/")[0] for name in names(wheel) if name.endswith(".py")}
    assert {f"{top}/py.typed" for top in tops} <= names(wheel)


def test_its_metadata(whole: Installed) -> None:
    (path,) = whole.site_packages().glob("segue-*.dist-info")
    metadata = PathDistribution(path).metadata
    assert (metadata["Version"], metadata["License-Expression"]) == (VERSION, "Apache-2.0")
    assert {"executor", "gpu", "bench"} <= set(metadata.get_all("Provides-Extra") or [])
    assert (path / "licenses" / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


def test_it_needs_torch_in_an_extra_only(whole: Installed) -> None:
    (path,) = whole.site_packages().glob("segue-*.dist-info")
    needed = PathDistribution(path).requires or []
    always = {one for one in needed if "extra ==" not in one}
    assert {one for one in needed if one.startswith("torch")} != set()
    assert {one for one in always if one.startswith(BIG)} == set()


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_is_there(whole: Installed, command: str) -> None:
    done = whole.run("segue", command, "--help")
    assert done.returncode == 0, done.stdout
    assert f"usage: segue {command}" in done.stdout


def test_it_says_its_version(whole: Installed) -> None:
    assert whole.run("segue", "--version").stdout == f"segue {VERSION}\n"


@pytest.mark.parametrize("service", ["scheduler_svc", "gateway_svc", "executor_svc"])
def test_each_service_starts_from_it(whole: Installed, service: str) -> None:
    done = whole.run("python", "-m", service, "--help")
    assert done.returncode == 0, done.stdout
    assert f"usage: {service}" in done.stdout


def test_its_kernels_are_compiled_from_its_own_sources(whole: Installed) -> None:
    program = "from segue_kernels.native.build import sources; print(*sources(), sep='\\n')"
    shown = whole.run("python", "-c", program).stdout.splitlines()
    assert {Path(line).name for line in shown} == {
        path.name for path in (ROOT / "kernels" / "native").glob("*.cpp")
    }
    assert {Path(line).is_relative_to(whole.site_packages()) for line in shown} == {True}


@pytest.mark.parametrize("service", ["scheduler_svc", "gateway_svc"])
def test_without_torch_a_scheduler_and_a_gateway_start(small: Installed, service: str) -> None:
    assert small.run("python", "-c", "import torch").returncode != 0
    done = small.run("python", "-m", service, "--help")
    assert done.returncode == 0, done.stdout


def test_without_torch_all_that_it_needs_is_there(small: Installed) -> None:
    """By pip's own account: the base dependencies name everything, and nothing of the extra."""
    command = [sys.executable, "-m", "pip", "--python", str(small.python), "check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert [line for line in done.stdout.splitlines() if line.startswith("segue ")] == []


def test_without_torch_serve_says_what_to_install(small: Installed) -> None:
    done = small.run("segue", "serve", "--model", "nowhere")
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "segue serve: no executor can run here, torch is not installed: "
        "pip install 'segue[executor]'"
    ]
