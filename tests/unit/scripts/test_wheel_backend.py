"""What the wheel's build renames, and that it refuses what it can not."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.wheel_backend import UnknownImport, renamed, stage
from tests.source_tree import ROOT


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from kernels import rms_norm\n", "from segue_kernels import rms_norm\n"),
        ("from kernels.native import a\n", "from segue_kernels.native import a\n"),
        ("import kernels\n", "import segue_kernels as kernels\n"),
        ("if x:\n    from kernels.a import b\n", "if x:\n    from segue_kernels.a import b\n"),
        ('"""`python -m kernels.native`"""\n', '"""`python -m segue_kernels.native`"""\n'),
        ("kernels.run('segue.kernels')\n", "kernels.run('segue.kernels')\n"),
        ('import_module("kernels.a")\n', 'import_module("segue_kernels.a")\n'),
        ("from kernels_of import a\n", "from kernels_of import a\n"),
    ],
)
def test_imports_are_renamed(text: str, expected: str) -> None:
    assert renamed(text, "a.py") == expected


@pytest.mark.parametrize(
    "text",
    ["import kernels.native", "import os, kernels", "load('kernels.a:B')", "load('kernels')"],
)
def test_what_can_not_be_renamed_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(UnknownImport, match=r"a\.py:2"):
        renamed(f"\n{text}\n", "a.py")


def test_the_tree_as_it_is_can_be_renamed(tmp_path: Path) -> None:
    stage(ROOT, tmp_path)
    assert (tmp_path / "segue_kernels" / "reference.py").exists()
    assert not (tmp_path / "kernels").exists()


def lines(name: str) -> set[str]:
    text = (ROOT / name).read_text()
    return {line for line in text.splitlines() if line and not line.startswith("#")}


def test_extras_that_tests_use_are_locked_for_them() -> None:
    assert lines("requirements-gpu.in") | lines("requirements-bench.in") <= lines(
        "requirements-dev.in"
    )


def test_an_executors_requirements_are_not_named_twice() -> None:
    assert lines("requirements.in").isdisjoint(lines("requirements-executor.in"))
