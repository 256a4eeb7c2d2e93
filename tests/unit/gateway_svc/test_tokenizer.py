"""Each token id stands for bytes, in the two ways that tokenizers write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway_svc.tokenizer import Tokenizer
from segue.model_files.model_directory import ModelDirectoryError


def _write(path: Path, decoder: Any) -> Path:
    vocab = {"<unk>": 0, "<0xE6>": 1, "▁Hello": 2, "▁": 3, "a": 4}
    content = {
        "version": "1.0",
        "added_tokens": [
            {
                "id": 5,
                "content": "</s>",
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
        ],
        "decoder": decoder,
        "model": {"type": "BPE", "vocab": vocab, "merges": [], "byte_fallback": True},
    }
    path.write_text(json.dumps(content))
    return path


SENTENCEPIECE = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ],
}


def test_sentencepiece_tokens(tmp_path: Path) -> None:
    tokenizer = Tokenizer(_write(tmp_path / "tokenizer.json", SENTENCEPIECE), vocab_size=8)

    assert [tokenizer.token_bytes(i) for i in range(1, 6)] == [
        b"\xe6",
        b" Hello",
        b" ",
        b"a",
        b"</s>",
    ]
    assert tokenizer.is_special(5)
    assert not tokenizer.is_special(4)


def test_an_id_without_a_token_is_no_text(tmp_path: Path) -> None:
    tokenizer = Tokenizer(_write(tmp_path / "tokenizer.json", SENTENCEPIECE), vocab_size=8)

    assert tokenizer.token_bytes(7) == b""


@pytest.mark.parametrize("decoder", [None, {"type": "WordPiece", "prefix": "##", "cleanup": True}])
def test_another_way_of_writing_bytes_is_refused_by_name(tmp_path: Path, decoder: Any) -> None:
    with pytest.raises(ModelDirectoryError, match=r"decoder (none|WordPiece) is not supported"):
        Tokenizer(_write(tmp_path / "tokenizer.json", decoder), vocab_size=8)
