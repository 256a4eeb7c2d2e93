"""The house's rules that no linter holds: sizes, words, who imports what, no dead file or comment.

Each test names every offender, so that one run tells all that is to be done.
"""

from __future__ import annotations

import ast
import re
import sys

import pytest

from segue.version import STATE_SCHEMA_VERSION
from tests.source_tree import PACKAGES, SourceFile, source_files

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
FILES = source_files()
PRODUCTION = tuple(file for file in FILES if file.is_production)

BANNED_STEMS = re.compile(r"(^|_)(utils?|helpers?|commons?|misc)($|_)")
BANNED_CLASSES = re.compile(r"^_?Base[A-Z]|Impl$|Mixin$|Utils?$|Helpers?$")
MANAGER = re.compile(r"Manager$")
ALLOWED_MANAGERS = {"KVCacheManager"}

# What a package may import at all, by the first part that matches; the standard library always.
ALLOWED_IMPORTS: dict[str, tuple[str, ...]] = {
    "segue.types": (),
    "scheduler_svc.core": ("segue.types", "scheduler_svc.core"),
    "kernels": ("torch", "numpy", "triton", "kernels"),
}
# Which modules may import a package; every other may not.
IMPORTERS: dict[str, tuple[str, ...]] = {
    "redis": (
        *("scheduler_svc.store", "scheduler_svc.lease", "segue.embedded_redis"),
        "segue.redis_client",
        *("segue.state_identity", "segue.commands"),
    ),
    "torch": ("executor_svc", "kernels"),
    "triton": ("kernels",),
    "opentelemetry": ("segue.telemetry", "segue.otlp_metrics", "segue.tracing"),
    "transformers": (),
}
# Started or found by name, not imported.
ENTRY_POINTS = re.compile(
    r"(\.__main__|^segue\.(child_guard|health_check)|^kernels\.triton\.ahead_of_time)$"
)
COMMENTED_CODE = (
    *(ast.Assign, ast.AugAssign, ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef),
    *(ast.If, ast.For, ast.While, ast.With, ast.Raise, ast.Assert, ast.Delete),
)


def is_in(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def test_there_is_something_to_check() -> None:
    """A wrong root would make every other test pass."""
    assert {file.module.partition(".")[0] for file in PRODUCTION} == set(PACKAGES)


def test_no_file_is_too_long() -> None:
    lengths = {file.name: file.text.count("\n") for file in FILES}
    assert {name: n for name, n in lengths.items() if n > MAX_FILE_LINES} == {}


def test_no_function_is_too_long() -> None:
    lengths = {
        f"{file.name}:{node.lineno} {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for file in FILES
        for node in file.functions()
    }
    assert {name: n for name, n in lengths.items() if n > MAX_FUNCTION_LINES} == {}


def test_no_file_has_a_banned_name() -> None:
    assert [file.name for file in FILES if BANNED_STEMS.search(file.path.stem)] == []


def test_no_class_has_a_banned_name() -> None:
    classes = [
        (file.name, node.name)
        for file in FILES
        for node in ast.walk(file.tree)
        if isinstance(node, ast.ClassDef)
    ]
    offenders = [
        (path, name)
        for path, name in classes
        if BANNED_CLASSES.search(name) or (MANAGER.search(name) and name not in ALLOWED_MANAGERS)
    ]
    assert offenders == []


def test_every_module_says_what_it_is() -> None:
    """An empty __init__.py has nothing to say."""
    silent = [file.name for file in FILES if file.tree.body and not ast.get_docstring(file.tree)]
    assert silent == []


@pytest.mark.parametrize("package", ALLOWED_IMPORTS)
def test_pure_packages_import_only_what_they_may(package: str) -> None:
    allowed = ALLOWED_IMPORTS[package]
    offenders = [
        (file.name, name)
        for file in PRODUCTION
        if is_in(file.module, (package,))
        for name in file.imports()
        if name.partition(".")[0] not in sys.stdlib_module_names and not is_in(name, allowed)
    ]
    assert offenders == []


@pytest.mark.parametrize("package", IMPORTERS)
def test_only_some_modules_know_a_package(package: str) -> None:
    offenders = {
        (file.name, name)
        for file in PRODUCTION
        if not is_in(file.module, IMPORTERS[package])
        for name in file.imports()
        if is_in(name, (package,))
    }
    assert offenders == set()


def test_services_do_not_import_each_other() -> None:
    """Import-linter holds it too; this one also sees imports inside functions of scripts."""
    services = {"gateway_svc", "scheduler_svc", "executor_svc"}
    offenders = [
        (file.name, name)
        for file in PRODUCTION
        for name in file.imports()
        if name.partition(".")[0] in services - {file.module.partition(".")[0]}
    ]
    assert [
        offender for offender in offenders if offender[0].split("/")[0] in {*services, "segue"}
    ] == []


def test_no_module_is_an_orphan() -> None:
    """Imported by no production code: dead, or built for a test that should own it."""
    imported = {name for file in FILES if _counts_as_user(file) for name in file.imports()}
    orphans = [
        file.name
        for file in PRODUCTION
        if file.path.stem != "__init__"
        and not _is_entry_point(file)
        and file.module not in imported
        and not _is_named_in_text(file.module)
    ]
    assert orphans == []


def _is_entry_point(file: SourceFile) -> bool:
    is_command = file.module.startswith("segue.commands.") and "\ndef register(" in file.text
    return is_command or ENTRY_POINTS.search(file.module) is not None


def _counts_as_user(file: SourceFile) -> bool:
    """A unit test of a module does not make the module used."""
    return not file.name.startswith("tests/unit/")


def _is_named_in_text(module: str) -> bool:
    """A registry that imports by name holds the name as a string."""
    quoted = (f'"{module}"', f'"{module}:')
    return any(text in file.text for file in PRODUCTION for text in quoted)


def test_no_code_is_commented_out() -> None:
    offenders = [
        f"{file.name}:{line} {text}"
        for file in FILES
        for line, text, is_alone in file.comments
        if is_alone and _is_code(text)
    ]
    assert offenders == []


def _is_code(comment: str) -> bool:
    text = comment.lstrip("# ").rstrip()
    candidate = f"{text}\n    pass" if text.endswith(":") else text
    try:
        statements = ast.parse(candidate).body
    except SyntaxError:
        return text.startswith(("return ", "@", "elif ", "except ")) and text.endswith((")", ":"))
    return any(
        isinstance(one, COMMENTED_CODE)
        or (isinstance(one, ast.Expr) and isinstance(one.value, ast.Call | ast.Await))
        for one in statements
    )


def test_commented_code_is_recognised() -> None:
    assert all(map(_is_code, ["# x = 1", "# foo(bar)", "# if x:", "# import os"]))
    assert not any(map(_is_code, ["# [num_tokens, num_heads]", "# why not", "# a: b, so c"]))


def test_no_banner_comments() -> None:
    banner = re.compile(r"^#\s*([-=#*~_])\1{3,}")
    offenders = [
        f"{file.name}:{line}"
        for file in FILES
        for line, text, _ in file.comments
        if banner.search(text) or re.search(r"[-=#*~]{5,}$", text)
    ]
    assert offenders == []


def test_every_todo_carries_a_link() -> None:
    todo = re.compile(r"\b(TODO|FIXME|XXX)\b")
    offenders = [
        f"{file.name}:{line} {text}"
        for file in FILES
        for line, text, _ in file.comments
        if todo.search(text) and not re.search(r"https?://|#\d+", text)
    ]
    assert offenders == []


def test_the_schema_version_is_one_number() -> None:
    """`segue serve` compares it and the store writes it, and neither may import the other."""
    from scheduler_svc.store.state_store import SCHEMA_VERSION

    assert SCHEMA_VERSION == STATE_SCHEMA_VERSION
