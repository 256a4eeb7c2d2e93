"""Makes a Hugging Face model directory from a GGUF file, whole or not at all.

Knows nothing about where the file comes from. Invariant: the directory appears under its name by
one rename, when every file in it is complete.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from gguf import GGUFReader

from segue.model_files.gguf_config import GGUFMetadata, make_config, make_generation_config
from segue.model_files.gguf_tokenizer import make_tokenizer, make_tokenizer_config
from segue.model_files.gguf_weights import Progress, write_weights
from segue.model_files.model_directory import ModelDirectoryError


def convert_gguf(
    gguf_path: Path, directory: Path, source: dict[str, Any], on_progress: Progress
) -> None:
    """Writes `directory`, replacing what is there. `source` is kept in it as source.json."""
    try:
        reader = GGUFReader(gguf_path)
    except IndexError as error:  # the reader looks behind the file's last byte
        raise ModelDirectoryError(f"{gguf_path}: not a GGUF file, or not all of it") from error
    except (ValueError, OSError) as error:
        raise ModelDirectoryError(f"{gguf_path}: not a GGUF file: {error}") from error
    directory.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        _write_directory(reader, building, on_progress)
        _write_json(building / "source.json", source)
        building.chmod(0o755)
        if directory.exists():
            shutil.rmtree(directory)
        building.rename(directory)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _write_directory(reader: GGUFReader, directory: Path, on_progress: Progress) -> None:
    metadata = GGUFMetadata(reader)
    config = make_config(metadata)
    make_tokenizer(metadata).save(str(directory / "tokenizer.json"))
    _write_json(directory / "tokenizer_config.json", make_tokenizer_config(metadata))
    _write_json(directory / "generation_config.json", make_generation_config(metadata))
    write_weights(reader, directory / "model.safetensors", config, on_progress)
    _write_json(directory / "config.json", config)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
