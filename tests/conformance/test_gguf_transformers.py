"""Our converter against transformers' own GGUF loader: the same ids, the same weights.

transformers knows no `tokenizer.ggml.pre`, so the one difference is digits, which `smollm` cuts off
first (as the model's own tokenizer does); the texts here do not show it.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from segue.model_files.gguf_convert import convert_gguf
from tests.gguf_file import write_gguf

transformers = pytest.importorskip("transformers")

TEXTS = [
    "Hello, world!",
    "x = 12345; y=3.14159",
    "  leading  double",
    "👩‍👩‍👧‍👦 漢字かな 한국어",
    "<|end|>Hi<|end|>\n",
    "tabs\t\tand\r\nlines\n\n\n",
    "I'm we'll they've",
    "\x00\x01",
]


@pytest.fixture(params=[gguf.GGMLQuantizationType.Q4_1, gguf.GGMLQuantizationType.Q8_0])
def gguf_path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    write_gguf(tmp_path / "model.gguf", quantization=request.param)
    convert_gguf(tmp_path / "model.gguf", tmp_path / "model", {}, lambda done, total: None)
    return tmp_path / "model.gguf"


def test_token_ids_are_those_of_transformers(gguf_path: Path) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(gguf_path.parent, gguf_file=gguf_path.name)
    ours = Tokenizer.from_file(str(gguf_path.parent / "model" / "tokenizer.json"))

    assert [ours.encode(text).ids for text in TEXTS] == [theirs(text).input_ids for text in TEXTS]


def test_weights_are_those_of_transformers(gguf_path: Path) -> None:
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = transformers.AutoConfig.from_pretrained(gguf_path.parent / "model")
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    theirs = load_gguf_checkpoint(str(gguf_path), return_tensors=True, model_to_load=model)
    ours = load_file(gguf_path.parent / "model" / "model.safetensors")

    assert set(ours) == set(theirs["tensors"])
    for name, values in ours.items():
        assert torch.equal(values, theirs["tensors"][name].to(torch.bfloat16)), name
