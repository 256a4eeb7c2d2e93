"""Builds Segue's wheel and installs it in a new environment, without any network.

Knows pip, and this interpreter's site-packages, which lend the environment what Segue needs: each
package there is a link, so that one can be left out. Invariant: our own checkout is not among them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

OURS = ("segue", "__editable__", "__pycache__")
# Of the environment that runs these tests, not of one that somebody has just made.
INHERITED = {"VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME"}


@dataclass(frozen=True, slots=True)
class Installed:
    """An environment with a wheel in it."""

    path: Path

    @property
    def python(self) -> Path:
        return self.path / "bin" / "python"

    def run(
        self, *command: str | Path, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """A program of this environment, by name; output and errors are one text."""
        program = self.path / "bin" / command[0]
        environ = {key: value for key, value in os.environ.items() if key not in INHERITED}
        return subprocess.run(
            [program, *command[1:]],
            cwd=cwd or self.path,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    def site_packages(self) -> Path:
        return Path(sysconfig.get_path("purelib", vars={"base": str(self.path)}))


def build_wheel(source: Path, target: Path) -> Path:
    """As anybody builds it, but with the setuptools that is here."""
    _pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(target), str(source))
    (wheel,) = target.glob("*.whl")
    return wheel


def install(wheel: Path, path: Path, without: tuple[str, ...] = ()) -> Installed:
    """In a new environment that borrows all packages but those that begin with one of `without`."""
    venv.create(path, with_pip=False, symlinks=True)
    installed = Installed(path)
    for package in Path(sysconfig.get_path("purelib")).iterdir():
        if not package.name.startswith((*OURS, *without)):
            (installed.site_packages() / package.name).symlink_to(package)
    _pip("--python", str(installed.python), "install", "--no-deps", "--no-index", str(wheel))
    return installed


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", *arguments]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
