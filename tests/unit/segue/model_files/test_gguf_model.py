"""`--model FILE.gguf` is converted once, and again when the file has changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from segue.commands.serve import model_directory
from segue.console import Console
from segue.model_files.gguf_model import ensure_gguf_model
from segue.model_files.model_directory import ModelDirectory, ModelDirectoryError
from tests.gguf_file import write_gguf


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SEGUE_CACHE", str(tmp_path / "cache"))
    write_gguf(tmp_path / "Tiny-Q8.gguf")
    return tmp_path / "Tiny-Q8.gguf"


def test_it_is_converted_once(path: Path) -> None:
    said: list[str] = []
    directory = ensure_gguf_model(path, say=said.append)
    assert directory.name == "tiny-q8"
    assert ensure_gguf_model(path, say=said.append) == directory
    assert [line.split()[0] for line in said] == ["converting"]


def test_another_file_under_its_name_is_converted_anew(path: Path) -> None:
    """And counts as another model: state made with the old weights is not taken up."""
    before = ModelDirectory.load(ensure_gguf_model(path, say=lambda line: None)).fingerprint()
    write_gguf(path, pre="gpt-2")
    said: list[str] = []
    after = ModelDirectory.load(ensure_gguf_model(path, say=said.append)).fingerprint()
    assert said
    assert before != after


def test_what_serve_is_given(path: Path) -> None:
    console = Console()
    assert model_directory(path, console) == ensure_gguf_model(path)
    assert model_directory(path.parent, console) == path.parent
    with pytest.raises(ModelDirectoryError, match="gone.gguf: No such file"):
        model_directory(path.parent / "gone.gguf", console)
    with pytest.raises(ModelDirectoryError, match="segue model convert"):
        ModelDirectory.load(path)
