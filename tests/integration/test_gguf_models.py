"""A GGUF file of each architecture becomes the checkpoint that it was made of, and runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from safetensors.torch import load_file

from executor_svc.model_loader import load_model
from executor_svc.models.decoder_config import read_decoder_config
from segue.model_files.gguf_convert import convert_gguf
from segue.model_files.model_directory import ModelDirectoryError
from tests.executor_driver import ExecutorDriver
from tests.gguf_of_checkpoint import write_gguf_of
from tests.tiny_checkpoint import FAMILIES, TINY, write_checkpoint

ALL: dict[str, dict[str, Any]] = {
    **FAMILIES,
    "llama": {},
    # llama.cpp knows no window for Qwen2, and no layer without experts beside some that have them.
    "qwen2": {"model_type": "qwen2"},
    "qwen3_moe": FAMILIES["qwen3_moe"] | {"mlp_only_layers": []},
    "llama3": {
        "rope_scaling": FAMILIES["llama3"]["rope_scaling"]
        | {"original_max_position_embeddings": 8192}
    },
}
# What the gguf package can write. It reads many more, see below.
WRITTEN = ("F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
READ_ONLY = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS")
PROMPT = torch.randint(0, 320, (50,), generator=torch.Generator().manual_seed(1)).tolist()


def converted(
    directory: Path, config: dict[str, Any], quantization: GGMLQuantizationType | None = None
) -> tuple[Path, Path]:
    """The checkpoint, and what its GGUF file was made into."""
    original = write_checkpoint(directory / "original", TINY | config)
    write_gguf_of(original, directory / "model.gguf", quantization)
    convert_gguf(directory / "model.gguf", directory / "made", {}, lambda done, total: None)
    return original, directory / "made"


def greedy(model_dir: Path, dtype: str) -> torch.Tensor:
    driver = ExecutorDriver(load_model(model_dir, dtype))
    driver.add("a", PROMPT)
    driver.prefill("a")
    driver.decode(["a"], 3)
    return torch.stack([driver.logits["a", index] for index in range(4)])


@pytest.mark.parametrize("name", ALL)
def test_the_same_model_comes_out(name: str, tmp_path: Path) -> None:
    """The configuration means the same, and the logits have the same bits."""
    original, made = converted(tmp_path, ALL[name])
    before, after = (
        read_decoder_config(json.loads((path / "config.json").read_text()))
        for path in (original, made)
    )
    assert after == before or name == "llama3"
    if name == "llama3":
        assert after.rotary.scaling == before.rotary.scaling
    assert torch.equal(greedy(made, "bfloat16"), greedy(original, "bfloat16"))


@pytest.mark.parametrize("quantization", WRITTEN)
def test_quantised_weights_are_near(quantization: str, tmp_path: Path) -> None:
    config = ALL["qwen3"] | {"head_dim": 32}  # whole blocks in each row
    original, made = converted(tmp_path, config, GGMLQuantizationType[quantization])
    expected = load_file(original / "model.safetensors")
    got = load_file(made / "model.safetensors")
    assert got.keys() == expected.keys()
    for name, tensor in got.items():
        error = (tensor.float() - expected[name]).abs().mean() / expected[name].abs().mean()
        assert error < 0.12, name


@pytest.mark.parametrize("quantization", READ_ONLY)
def test_quantisations_that_only_llama_cpp_writes(quantization: str, tmp_path: Path) -> None:
    """Any bits are weights: those of a real file are read by the same table."""
    kind = GGMLQuantizationType[quantization]
    config = TINY | {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1}
    original = write_checkpoint(tmp_path / "original", config)
    _, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    row_bytes = 256 // gguf.GGML_QUANT_SIZES[kind][0] * block_bytes
    # Bytes below 60: the half precision numbers among them are finite.
    rng = np.random.default_rng(0)
    monkey = pytest.MonkeyPatch()
    monkey.setattr(
        gguf.quants,
        "quantize",
        lambda values, _: rng.integers(0, 60, (len(values), row_bytes), dtype=np.uint8),
    )
    with monkey.context():
        write_gguf_of(original, tmp_path / "model.gguf", kind)
    monkey.undo()
    convert_gguf(tmp_path / "model.gguf", tmp_path / "made", {}, lambda done, total: None)
    for tensor in load_file(tmp_path / "made" / "model.safetensors").values():
        assert tensor.isfinite().all()
        assert tensor.abs().max() > 0


def test_a_quantisation_that_can_not_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr("segue.model_files.gguf_weights.dequantize", refuse)
    with pytest.raises(ModelDirectoryError, match="quantisation F32 of 'token_embd.weight'"):
        converted(tmp_path, {})


def test_rope_factors_of_another_formula_are_refused(tmp_path: Path) -> None:
    scaling = ALL["llama3"]["rope_scaling"] | {"original_max_position_embeddings": 777}
    with pytest.raises(ModelDirectoryError, match="rope_freqs.weight"):
        converted(tmp_path, {"rope_scaling": scaling})
