"""`--model FILE.gguf`: the file's model directory in the cache, made when it is not there yet.

Knows where it is kept and when it is stale. Invariant: what stands there was made by this converter
from a file of that path, size and time of change; otherwise it is made again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tqdm import tqdm

from segue.model_files.demo_model import cache_dir
from segue.model_files.gguf_convert import convert_gguf
from segue.model_files.model_directory import ModelDirectoryError, read_json

CONVERTER_VERSION = 2
DIGEST_LETTERS = 12

Say = Callable[[str], None]


def ensure_gguf_model(path: Path, say: Say = print, directory: Path | None = None) -> Path:
    """The directory. It is named after the file, since that names the model in the API."""
    path = path.resolve()
    try:
        status = path.stat()
    except OSError as error:
        raise ModelDirectoryError(f"{path}: {error.strerror}") from error
    source = {
        "file": str(path),
        "size": status.st_size,
        "changed_ns": status.st_mtime_ns,
        "converter": CONVERTER_VERSION,
    }
    if directory is None:
        digest = hashlib.sha256(str(path).encode()).hexdigest()[:DIGEST_LETTERS]
        directory = cache_dir() / "models" / f"gguf-{digest}" / path.stem.lower()
    if _is_made_from(source, directory):
        return directory
    say(f"converting {path.name} into {directory} (once)")
    bar: tqdm[Any] = tqdm(total=0, unit="B", unit_scale=True, desc=path.stem)

    def show(done: int, total: int) -> None:
        bar.total = total
        bar.update(done - bar.n)

    try:
        with bar:
            convert_gguf(path, directory, source, show)
    except OSError as error:
        raise ModelDirectoryError(f"{error.filename or directory}: {error.strerror}") from error
    return directory


def _is_made_from(source: dict[str, Any], directory: Path) -> bool:
    try:
        return read_json(directory / "source.json", optional=True) == source
    except ModelDirectoryError:
        return False
