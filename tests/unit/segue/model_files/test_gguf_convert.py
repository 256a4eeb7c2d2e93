"""A small GGUF file, made here, becomes a Hugging Face directory with the very same weights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from tokenizers import Tokenizer

from segue.model_files.gguf_convert import convert_gguf
from segue.model_files.gguf_weights import to_bfloat16, unpermute
from segue.model_files.model_directory import ModelDirectory, ModelDirectoryError
from tests.gguf_file import HEAD_DIM, KV_HEADS, TOKENS, write_gguf


def _convert(gguf_path: Path, directory: Path) -> None:
    convert_gguf(gguf_path, directory, {"from": "a test"}, lambda done, total: None)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_gguf(tmp_path / "model.gguf")
    _convert(tmp_path / "model.gguf", tmp_path / "model")
    return tmp_path / "model"


def test_the_directory_reads_as_a_model(directory: Path) -> None:
    model = ModelDirectory.load(directory)

    assert (model.model_type, model.vocab_size, model.max_model_len) == ("llama", len(TOKENS), 128)
    assert model.eos_token_id == 0
    assert model.chat_template == "{{ messages[0].content }}"
    assert model.config["rms_norm_eps"] == 1e-5
    assert model.config["tie_word_embeddings"] is True
    assert len(model.fingerprint()) == 64


def test_digits_stand_alone_before_the_merges(directory: Path) -> None:
    """`smollm` cuts at digits first, so that two spaces before a digit are one token."""
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))

    assert tokenizer.encode("  1").tokens == ["ĠĠ", "1"]
    assert tokenizer.encode("ab<|end|>").ids == [TOKENS.index("ab"), 0]


def test_gpt2_cuts_a_space_off_with_the_digit(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", pre="gpt-2")
    _convert(tmp_path / "model.gguf", tmp_path / "model")
    tokenizer = Tokenizer.from_file(str(tmp_path / "model" / "tokenizer.json"))

    assert tokenizer.encode("  1").tokens == ["Ġ", "Ġ", "1"]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"pre": "martian"}, "pre-tokenizer 'martian' is not one of: deepseek-r1-qwen, gpt-2, "),
        ({"architecture": "mamba"}, "architecture 'mamba' is not one of: llama"),
    ],
)
def test_what_is_not_known_is_refused_by_name(
    tmp_path: Path, options: dict[str, str], message: str
) -> None:
    write_gguf(tmp_path / "model.gguf", **options)  # pyright: ignore[reportArgumentType]

    with pytest.raises(ModelDirectoryError, match=message):
        _convert(tmp_path / "model.gguf", tmp_path / "model")

    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"no such thing" * 10)

    with pytest.raises(ModelDirectoryError, match="not a GGUF file"):
        _convert(tmp_path / "model.gguf", tmp_path / "model")


@pytest.mark.parametrize("num_bytes", [30, 300, 6000, 20_000])
def test_a_file_that_was_cut_off_is_refused(tmp_path: Path, num_bytes: int) -> None:
    """In its metadata, in its list of tensors and in a tensor."""
    path = tmp_path / "model.gguf"
    write_gguf(path)
    path.write_bytes(path.read_bytes()[:num_bytes])

    with pytest.raises(ModelDirectoryError, match="not a GGUF file"):
        _convert(path, tmp_path / "model")


def test_text_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path)
    path.write_bytes(path.read_bytes().replace(b"<|end|>", b"<|e\xffd|>", 1))

    with pytest.raises(ModelDirectoryError, match=r"tokenizer.ggml.tokens is not UTF-8"):
        _convert(path, tmp_path / "model")


def test_weights_keep_their_values_and_q_and_k_lose_their_permutation(tmp_path: Path) -> None:
    weights = write_gguf(tmp_path / "model.gguf")
    _convert(tmp_path / "model.gguf", tmp_path / "model")

    with safe_open(tmp_path / "model" / "model.safetensors", "pt") as file:
        stored = {name: file.get_tensor(name).float().numpy() for name in file.keys()}  # noqa: SIM118

    def rounded(values: np.ndarray) -> np.ndarray:
        return (to_bfloat16(values).astype(np.uint32) << 16).view(np.float32)

    layer = "model.layers.0"
    assert len(stored) == len(weights)
    np.testing.assert_array_equal(
        stored[f"{layer}.mlp.down_proj.weight"], rounded(weights["blk.0.ffn_down"])
    )
    key_rows = stored[f"{layer}.self_attn.k_proj.weight"].reshape(KV_HEADS, 2, HEAD_DIM // 2, -1)
    gguf_rows = rounded(weights["blk.0.attn_k"]).reshape(KV_HEADS, HEAD_DIM // 2, 2, -1)
    np.testing.assert_array_equal(key_rows[1, 1, 3], gguf_rows[1, 3, 1])


def test_unpermute_undoes_the_permutation_of_llama_cpp() -> None:
    rows = np.arange(2 * 8 * 3, dtype=np.float32).reshape(16, 3)
    permuted = rows.reshape(2, 2, 4, 3).swapaxes(1, 2).reshape(16, 3)

    np.testing.assert_array_equal(unpermute(permuted, 2), rows)


def test_bfloat16_rounds_to_nearest_even() -> None:
    ulp = 2.0**-7
    values = np.array([1.0, 1 + ulp / 2, 1 + ulp * 1.5, 1 + ulp * 0.51, -1.1], dtype=np.float32)

    back = (to_bfloat16(values).astype(np.uint32) << 16).view(np.float32)

    assert back[:4].tolist() == [1.0, 1.0, 1 + 2 * ulp, 1 + ulp]
    assert abs(back[4] + 1.1) < ulp / 2


def test_a_second_conversion_replaces_the_first(directory: Path, tmp_path: Path) -> None:
    (directory / "left-over").write_text("old")

    _convert(tmp_path / "model.gguf", directory)

    assert not (directory / "left-over").exists()
    assert json.loads((directory / "source.json").read_text()) == {"from": "a test"}
