"""What a model directory says, and what it says when something is missing."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from segue.model_files.hand import CHAT_TEMPLATE, write_hand_model
from segue.model_files.model_directory import ModelDirectory, ModelDirectoryError


def _change(path: Path, **values: Any) -> None:
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(content | values))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_hand_model(tmp_path / "hand")


def test_reads_the_hand_model(directory: Path) -> None:
    model = ModelDirectory.load(directory)

    assert (model.model_type, model.vocab_size, model.max_model_len) == ("segue_hand", 259, 4096)
    assert (model.eos_token_id, model.stop_token_ids) == (257, ())
    assert model.chat_template == CHAT_TEMPLATE
    assert model.special_tokens["bos_token"] == "<bos>"


def test_the_tokenizers_own_eos_is_the_eos_and_the_others_are_stop_tokens(directory: Path) -> None:
    _change(directory / "generation_config.json", eos_token_id=[258, 257, 3])

    model = ModelDirectory.load(directory)

    assert (model.eos_token_id, model.stop_token_ids) == (257, (258, 3))


def test_the_first_eos_id_is_the_eos_where_the_tokenizer_names_none(directory: Path) -> None:
    _change(directory / "generation_config.json", eos_token_id=[7, 8])
    _change(directory / "tokenizer_config.json", eos_token=None)

    model = ModelDirectory.load(directory)

    assert (model.eos_token_id, model.stop_token_ids) == (7, (8,))


def test_config_names_the_eos_where_there_is_no_generation_config(directory: Path) -> None:
    (directory / "generation_config.json").unlink()

    assert ModelDirectory.load(directory).eos_token_id == 257


def test_defaults_of_sampling_come_from_the_generation_config(directory: Path) -> None:
    _change(directory / "generation_config.json", temperature=0.6, top_p=0.9, do_sample=True)

    assert ModelDirectory.load(directory).default_sampling == {"temperature": 0.6, "top_p": 0.9}


def test_a_template_file_wins_over_the_configuration(directory: Path) -> None:
    (directory / "chat_template.jinja").write_text("from the file")

    assert ModelDirectory.load(directory).chat_template == "from the file"


def test_of_named_templates_the_default_is_taken(directory: Path) -> None:
    templates = [{"name": "tool_use", "template": "a"}, {"name": "default", "template": "b"}]
    _change(directory / "tokenizer_config.json", chat_template=templates)

    assert ModelDirectory.load(directory).chat_template == "b"


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_missing_file_is_named_in_one_line(directory: Path, name: str) -> None:
    (directory / name).unlink()

    with pytest.raises(ModelDirectoryError, match=rf"^[^\n]*{name} is missing$"):
        ModelDirectory.load(directory)


def test_a_missing_directory_and_broken_json_are_named(directory: Path) -> None:
    (directory / "config.json").write_text("{")

    with pytest.raises(ModelDirectoryError, match=r"config\.json: not JSON"):
        ModelDirectory.load(directory)
    with pytest.raises(ModelDirectoryError, match="nowhere is not a directory"):
        ModelDirectory.load(directory / "nowhere")


def test_the_fingerprint_sees_configuration_shapes_and_sizes(directory: Path) -> None:
    def write_weights(header: bytes, size: int) -> str:
        data = struct.pack("<Q", len(header)) + header + bytes(size)
        (directory / "model.safetensors").write_bytes(data)
        return ModelDirectory.load(directory).fingerprint()

    fingerprints = [
        ModelDirectory.load(directory).fingerprint(),
        write_weights(b'{"a":1}', 8),
        write_weights(b'{"a":2}', 8),
        write_weights(b'{"a":2}', 9),
    ]
    _change(directory / "config.json", rope_theta=1.0)
    fingerprints.append(ModelDirectory.load(directory).fingerprint())

    fingerprints.append(ModelDirectory.load(directory).fingerprint("int8"))
    fingerprints.append(ModelDirectory.load(directory).fingerprint("none"))

    assert len(set(fingerprints)) == 6
    assert ModelDirectory.load(directory).fingerprint() == fingerprints[-1]
