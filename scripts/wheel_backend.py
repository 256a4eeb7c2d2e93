"""Builds the wheel: setuptools does it, from a copy in which `kernels` is called `segue_kernels`.

Knows this tree's packages and Python's import statements; pip calls it (pyproject.toml). Invariant:
no wheel has a module, or imports one, that is called `kernels`: a form of import that is not known
here ends the build (docs/decisions/kernels-in-a-wheel.md). Editable installs are setuptools' own.
"""

from __future__ import annotations

import ast
import contextlib
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
]

PACKAGES = ("segue", "gateway_svc", "scheduler_svc", "executor_svc", "kernels")
FILES = ("pyproject.toml", "README.md", "LICENSE", "requirements*.in")
OLD, NEW = "kernels", "segue_kernels"
IMPORT_FROM = re.compile(rf"^(\s*)from {OLD}(?=[. ])", re.MULTILINE)
IMPORT = re.compile(rf"^(\s*)import {OLD}$", re.MULTILINE)
BY_NAME = re.compile(rf"(?<=import_module\(\"){OLD}(?=[.\"])")
COMMAND = re.compile(rf"(?<=python -m ){OLD}(?=\.)")


class UnknownImport(Exception):
    """Says where."""


def build_wheel(
    wheel_directory: str,
    config_settings: Any = None,
    metadata_directory: str | None = None,
) -> str:
    """Without prepare_metadata_for_build_wheel beside it, there never is a metadata_directory."""
    assert metadata_directory is None
    target = str(Path(wheel_directory).resolve())
    with tempfile.TemporaryDirectory() as scratch:
        stage(Path.cwd(), Path(scratch))
        with contextlib.chdir(scratch):
            return build_meta.build_wheel(target, config_settings)


def stage(source: Path, target: Path) -> None:
    """Copies what a wheel is made of, and renames."""
    for pattern in FILES:
        for path in source.glob(pattern):
            shutil.copy2(path, target)
    for package in PACKAGES:
        destination = target / (NEW if package == OLD else package)
        shutil.copytree(source / package, destination, ignore=shutil.ignore_patterns("__pycache__"))
        for path in destination.rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            path.write_text(renamed(text, str(path.relative_to(target))), encoding="utf-8")


def renamed(text: str, name: str) -> str:
    """A module's text, importing `segue_kernels` instead. Raises UnknownImport."""
    text = IMPORT_FROM.sub(rf"\1from {NEW}", text)
    text = IMPORT.sub(rf"\1import {NEW} as {OLD}", text)
    text = BY_NAME.sub(NEW, text)
    text = COMMAND.sub(NEW, text)
    for node in ast.walk(ast.parse(text)):
        if any(one == OLD or one.startswith(f"{OLD}.") for one in _modules_named(node)):
            line = getattr(node, "lineno", "?")
            raise UnknownImport(f"{name}:{line}: this use of {OLD} can not be renamed for a wheel")
    return text


def _modules_named(node: ast.AST) -> list[str]:
    """By an import, or by a string, as a registry names a module."""
    match node:
        case ast.Import():
            return [alias.name for alias in node.names]
        case ast.ImportFrom(module=str(module), level=0):
            return [module]
        case ast.Constant(value=str(value)) if re.fullmatch(r"[\w.]+(:\w+)?", value):
            return [value]
        case _:
            return []
