"""A Hugging Face model directory, as far as text and token ids are concerned.

Reads config.json, generation_config.json, tokenizer.json and the chat template; knows no tensor and
fetches nothing. Invariant: what is missing or broken is said when the directory is loaded, in one
line that names the file.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

JsonObject = dict[str, Any]

# What vLLM takes from generation_config.json where a client does not say otherwise.
DEFAULT_SAMPLING_KEYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
# A safetensors file begins with the length of its JSON header, 8 bytes little-endian.
SAFETENSORS_LENGTH = struct.Struct("<Q")
MAX_SAFETENSORS_HEADER = 100 << 20
UNQUANTIZED = "none"  # by --quantization


class ModelDirectoryError(ValueError):
    """The directory does not hold a model that can be served; the message is one readable line."""


@dataclass(slots=True, frozen=True)
class ModelDirectory:
    """What the directory says. `eos_token_id` ends a request, and so does each further one.

    A fine-tune may name several end-of-text ids: the tokenizer's own (else the first) is the EOS,
    and the others are stop token ids of every request, as in vLLM.
    """

    path: Path
    config: JsonObject
    eos_token_id: int | None
    stop_token_ids: tuple[int, ...]
    default_sampling: dict[str, float]
    special_tokens: dict[str, str]  # "bos_token" -> its text, for the chat template
    chat_template: str | None

    @classmethod
    def load(cls, path: str | Path) -> ModelDirectory:
        directory = Path(path)
        if not directory.is_dir():
            hint = " (segue model convert makes one of it)" if directory.suffix == ".gguf" else ""
            raise ModelDirectoryError(f"{directory} is not a directory{hint}")
        config = read_json(directory / "config.json")
        generation = read_json(directory / "generation_config.json", optional=True)
        tokenizer = read_json(directory / "tokenizer.json")
        tokenizer_config = read_json(directory / "tokenizer_config.json", optional=True)
        special_tokens = _special_tokens(tokenizer_config)
        eos_token_ids = _eos_token_ids(config, generation)
        own = _added_token_id(tokenizer, special_tokens.get("eos_token"))
        if own is not None and (own in eos_token_ids or not eos_token_ids):
            eos_token_ids = [own, *(i for i in eos_token_ids if i != own)]
        return cls(
            path=directory,
            config=config,
            eos_token_id=eos_token_ids[0] if eos_token_ids else None,
            stop_token_ids=tuple(eos_token_ids[1:]),
            default_sampling={
                key: generation[key]
                for key in DEFAULT_SAMPLING_KEYS
                if isinstance(generation.get(key), int | float)
            },
            special_tokens=special_tokens,
            chat_template=_chat_template(directory, tokenizer_config),
        )

    @property
    def tokenizer_path(self) -> Path:
        return self.path / "tokenizer.json"

    @property
    def model_type(self) -> str:
        return str(self.config.get("model_type", ""))

    @property
    def vocab_size(self) -> int:
        value = self.config.get("vocab_size")
        if not isinstance(value, int) or value <= 0:
            raise ModelDirectoryError(f"{self.path}/config.json: vocab_size is missing")
        return value

    @property
    def max_model_len(self) -> int:
        """The context length of the model; 0 where it names none."""
        value = self.config.get("max_position_embeddings", 0)
        return value if isinstance(value, int) else 0

    def fingerprint(self, quantization: str = UNQUANTIZED) -> str:
        """Names the model: configuration, tokenizer, and names, shapes and sizes of the weights,
        and what its weights are made into where it is served.

        The weights themselves are not read, so it takes milliseconds for a model of any size.
        """
        digest = hashlib.sha256()
        for name in ("config.json", "tokenizer.json"):
            digest.update((self.path / name).read_bytes())
        source = self.path / "source.json"  # of what was converted: two quantisations look alike
        if source.is_file():
            digest.update(source.read_bytes())
        for weights in sorted(self.path.glob("*.safetensors")):
            digest.update(f"{weights.name} {weights.stat().st_size}\n".encode())
            digest.update(_safetensors_header(weights))
        if quantization != UNQUANTIZED:
            digest.update(quantization.encode())
        return digest.hexdigest()


def read_json(path: Path, *, optional: bool = False) -> JsonObject:
    """The object in this file; empty where an optional file is not there."""
    try:
        content: object = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        if optional:
            return {}
        raise ModelDirectoryError(f"{path.parent}: {path.name} is missing") from error
    except OSError as error:
        raise ModelDirectoryError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ModelDirectoryError(f"{path}: not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelDirectoryError(f"{path}: not a JSON object")
    return cast(JsonObject, content)


def _eos_token_ids(config: JsonObject, generation: JsonObject) -> list[int]:
    value: object = generation.get("eos_token_id")
    if value is None:
        value = config.get("eos_token_id")
    ids = cast("list[object]", value) if isinstance(value, list) else [value]
    return list(dict.fromkeys(i for i in ids if isinstance(i, int)))


def _special_tokens(tokenizer_config: JsonObject) -> dict[str, str]:
    tokens: dict[str, str] = {}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        value: object = tokenizer_config.get(name)
        if isinstance(value, dict):  # an AddedToken, written out
            value = cast(JsonObject, value).get("content")
        if isinstance(value, str):
            tokens[name] = value
    return tokens


def _added_token_id(tokenizer: JsonObject, content: str | None) -> int | None:
    added_tokens = cast("list[JsonObject]", tokenizer.get("added_tokens") or [])
    for token in added_tokens:
        if token.get("content") == content:
            return int(token["id"])
    return None


def _chat_template(directory: Path, tokenizer_config: JsonObject) -> str | None:
    """A file of its own wins; of several named templates in the configuration, `default`."""
    path = directory / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template: object = tokenizer_config.get("chat_template")
    if isinstance(template, list):
        named = cast("list[JsonObject]", template)
        template = {str(item.get("name")): item.get("template") for item in named}.get("default")
    return template if isinstance(template, str) else None


def _safetensors_header(path: Path) -> bytes:
    with path.open("rb") as file:
        prefix = file.read(SAFETENSORS_LENGTH.size)
        if len(prefix) < SAFETENSORS_LENGTH.size:
            raise ModelDirectoryError(f"{path}: not a safetensors file")
        (length,) = SAFETENSORS_LENGTH.unpack(prefix)
        if length > MAX_SAFETENSORS_HEADER:
            raise ModelDirectoryError(f"{path}: not a safetensors file")
        return file.read(length)
