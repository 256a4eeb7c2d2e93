"""Our converter against transformers' own GGUF loader: the same ids, the same weights.

transformers knows no `tokenizer.ggml.pre`, so the one difference is digits, which `smollm` cuts off
first (as the model's own tokenizer does); the texts here do not show it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from segue.model_files.gguf_convert import convert_gguf
from segue.model_files.gguf_pre_tokenizers import PRE_TOKENIZERS
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


@pytest.mark.parametrize("pre", sorted(PRE_TOKENIZERS.keys() - {"smollm", "gpt-2"}))
def test_text_is_cut_as_transformers_cuts_it(pre: str, tmp_path: Path) -> None:
    ours = assert_same_ids(tmp_path, pre=pre)
    # Where the file does not say, Llama 3 and tekken begin with BOS, as llama.cpp has it.
    assert (ours.encode("ab").ids[0] == 0) == ("qwen" not in pre)


def test_qwen_composes_letters_as_its_own_tokenizer_does(tmp_path: Path) -> None:
    """transformers and llama.cpp leave NFC out when they read GGUF; tokenizer.json has it."""
    tokenizer = assert_same_ids(tmp_path, pre="qwen2")
    assert tokenizer.encode("e\u0301").ids == tokenizer.encode("\u00e9").ids


def test_sentencepiece_ids_are_those_of_transformers(tmp_path: Path) -> None:
    """But for a leading space, before which SentencePiece, unlike transformers, puts its own."""
    ours = assert_same_ids(tmp_path, is_sentencepiece=True)
    assert ours.encode(" a", add_special_tokens=False).tokens == ["▁", "▁a"]
    assert ours.decode(ours.encode("hello ab é").ids) == "hello ab é"


def assert_same_ids(directory: Path, **options: Any) -> Tokenizer:
    write_gguf(directory / "model.gguf", **options)
    convert_gguf(directory / "model.gguf", directory / "model", {}, lambda done, total: None)
    theirs = transformers.AutoTokenizer.from_pretrained(directory, gguf_file="model.gguf")
    ours = Tokenizer.from_file(str(directory / "model" / "tokenizer.json"))
    texts = [*TEXTS, "hello abc  hello", "It'S 20260 Ça WHATever"]
    is_sentencepiece = "is_sentencepiece" in options
    for text in [text for text in texts if not (is_sentencepiece and text.startswith(" "))]:
        expected = theirs(text, add_special_tokens=False).input_ids
        assert ours.encode(text, add_special_tokens=False).ids == expected, text
    return ours


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
