"""Writes the directory of the hand model: a model without weights that can be worked out by hand.

Knows the files, not the arithmetic (see `executor_svc/models/hand.py`). Invariant: token i of the
first 256 is the byte i, so text and token ids are the same thing written in two ways.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from segue.model_files.byte_level import CHAR_OF_BYTE

BOS_TOKEN_ID, EOS_TOKEN_ID, PAD_TOKEN_ID = 256, 257, 258
SPECIAL_TOKENS = {"<bos>": BOS_TOKEN_ID, "<eos>": EOS_TOKEN_ID, "<pad>": PAD_TOKEN_ID}
VOCAB_SIZE = 259
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def write_hand_model(path: str | Path, *, max_position_embeddings: int = 4096) -> Path:
    """Writes the model directory `path`, made if need be, and returns it."""
    directory = Path(path)
    directory.mkdir(parents=True, exist_ok=True)
    token_ids = {"bos_token_id": BOS_TOKEN_ID, "eos_token_id": EOS_TOKEN_ID}
    config = {
        "model_type": "segue_hand",
        "architectures": ["SegueHandModel"],
        "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": max_position_embeddings,
        **token_ids,
    }
    tokenizer_config = {
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "chat_template": CHAT_TEMPLATE,
    }
    _write(directory / "config.json", config)
    _write(directory / "generation_config.json", {**token_ids, "pad_token_id": PAD_TOKEN_ID})
    _write(directory / "tokenizer.json", _tokenizer())
    _write(directory / "tokenizer_config.json", tokenizer_config)
    return directory


def _tokenizer() -> dict[str, Any]:
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": False,
    }
    added_tokens = [
        {
            "id": token_id,
            "content": content,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for content, token_id in SPECIAL_TOKENS.items()
    ]
    return {
        "version": "1.0",
        "added_tokens": added_tokens,
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": {char: byte for byte, char in CHAR_OF_BYTE.items()},
            "merges": [],
        },
    }


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
