"""Each token id stands for bytes, in the two ways that tokenizers write them."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from gateway_svc.tokenizer import Tokenizer
from segue.model_files.hand import VOCAB_SIZE, write_hand_model
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


def test_a_long_text_is_cut_as_a_short_one_and_others_run_meanwhile(tmp_path: Path) -> None:
    write_hand_model(tmp_path)
    tokenizer = Tokenizer(tmp_path / "tokenizer.json", VOCAB_SIZE)
    text = "ab漢" * 400_000
    num_turns, is_over = 0, threading.Event()

    def take_turns() -> None:
        nonlocal num_turns
        while not is_over.wait(0.001):
            num_turns += 1

    other = threading.Thread(target=take_turns)
    other.start()
    ids = tokenizer.encode(text, add_special_tokens=False)
    is_over.set()
    other.join()

    assert bytes(ids) == text.encode()
    assert num_turns > 20
    assert 0 < tokenizer.least_tokens(text) <= len(ids)
