"""The GGUF file that peers are compared with holds the weights that our conversion gives."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader
from safetensors.torch import load_file

from scripts.bf16_gguf import rewrite
from segue.model_files.gguf_convert import convert_gguf
from tests.gguf_of_checkpoint import write_gguf_of
from tests.tiny_checkpoint import TINY, write_checkpoint


def converted(gguf_file: Path, directory: Path) -> dict[str, torch.Tensor]:
    convert_gguf(gguf_file, directory, {}, lambda done, total: None)
    return load_file(directory / "model.safetensors")


@pytest.mark.parametrize("quantization", ["F16", "Q4_1"])
def test_the_same_weights_are_read_from_both(quantization: str, tmp_path: Path) -> None:
    original = write_checkpoint(tmp_path / "original", TINY)
    packed, plain = tmp_path / "packed.gguf", tmp_path / "plain.gguf"
    write_gguf_of(original, packed, GGMLQuantizationType[quantization])
    rewrite(packed, plain)
    matrices = [tensor for tensor in GGUFReader(plain).tensors if len(tensor.shape) == 2]
    assert {tensor.tensor_type for tensor in matrices} == {GGMLQuantizationType.BF16}
    expected = converted(packed, tmp_path / "expected")
    made = converted(plain, tmp_path / "made")
    assert made.keys() == expected.keys()
    assert all(torch.equal(made[name], expected[name]) for name in made)
