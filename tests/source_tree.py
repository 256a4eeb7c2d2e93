"""The Python files of the repository, for the tests that read code.

Knows paths and syntax trees; knows no rule. Invariant: generated code is not among them.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PACKAGES = ("segue", "gateway_svc", "scheduler_svc", "executor_svc", "kernels")
OTHER_ROOTS = ("tests", "scripts", "examples")
GENERATED = ROOT / "segue" / "v1"


class Comment(NamedTuple):
    """`is_alone`: it has the line for itself."""

    line: int
    text: str
    is_alone: bool


@dataclass(frozen=True)
class SourceFile:
    """One file. `module` is its dotted name, of a package for an `__init__.py`.

    It is parsed when a test asks: every worker of a test run collects, and few have such a test.
    """

    path: Path
    module: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, str(self.path))

    @cached_property
    def comments(self) -> tuple[Comment, ...]:
        return tuple(_comments(self.text))

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT))

    @property
    def is_production(self) -> bool:
        return self.path.relative_to(ROOT).parts[0] in PACKAGES

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node

    def imports(self) -> Iterator[str]:
        """Dotted names as they stand, and for `from a import b` both `a` and `a.b`."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{self.name}:{node.lineno}: relative import"
                assert node.module is not None
                yield node.module
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def source_files() -> tuple[SourceFile, ...]:
    paths = [
        path
        for root in (*PACKAGES, *OTHER_ROOTS)
        for path in sorted((ROOT / root).rglob("*.py"))
        if not path.is_relative_to(GENERATED)
    ]
    return tuple(
        SourceFile(path, _module(path), path.read_text(encoding="utf-8")) for path in paths
    )


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _comments(text: str) -> Iterator[Comment]:
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            line = token.start[0]
            yield Comment(line, token.string, lines[line - 1].lstrip().startswith("#"))
