"""The hand model's directory: every byte is a token, and back."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from segue.model_files.hand import VOCAB_SIZE, write_hand_model


def test_token_ids_are_the_bytes_of_the_text(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(write_hand_model(tmp_path / "hand") / "tokenizer.json"))
    text = "héllo 12\n\t\x00 漢字 👩‍👩‍👧‍👦"

    token_ids = tokenizer.encode(text).ids

    assert token_ids == list(text.encode())
    assert tokenizer.decode(token_ids) == text


def test_special_tokens_follow_the_bytes(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(write_hand_model(tmp_path) / "tokenizer.json"))

    assert tokenizer.encode("<bos>a<eos><pad>").ids == [256, 97, 257, 258]
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
