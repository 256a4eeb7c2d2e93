"""Text to token ids, and each token id to the bytes it stands for.

Knows tokenizer.json, nothing about requests. Invariant: the text of a sequence of ids is
the concatenation of the bytes of each, so it can be told token by token and comes out the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from tokenizers import Tokenizer as TokenizersTokenizer

from segue.model_files.byte_level import BYTE_OF_CHAR
from segue.model_files.model_directory import ModelDirectoryError, read_json

# SentencePiece writes a space as this, and a byte that has no token of its own as <0xAB>.
METASPACE = "▁"
BYTE_FALLBACK_LENGTH = len("<0xAB>")

LONG_TEXT_CHARS = 16 << 10
# A normalizer may make fewer characters of a text before it is cut into tokens; not so many fewer.
MOST_CHARS_MERGED = 4


class Tokenizer:
    """The tokenizer of the model. `vocab_size` is the model's: ids below it may be sent."""

    def __init__(self, path: Path, vocab_size: int) -> None:
        content = read_json(path)
        self.vocab_size = vocab_size
        try:
            self._tokenizer = TokenizersTokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception
            raise ModelDirectoryError(f"{path}: {error}") from error
        self._is_byte_level = _is_byte_level(path, content.get("decoder"))
        added = cast("list[dict[str, Any]]", content.get("added_tokens") or [])
        self._added = {int(token["id"]): str(token["content"]) for token in added}
        self._special_ids = frozenset(int(token["id"]) for token in added if token.get("special"))
        self._bytes: dict[int, bytes] = {}
        longest = max(map(len, self._tokenizer.get_vocab(with_added_tokens=True)), default=1)
        self._most_chars_of_token = longest * MOST_CHARS_MERGED

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        if len(text) < LONG_TEXT_CHARS:
            return self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        # Unlike `encode` it lets go of the interpreter, so that the streams of others go on.
        batch = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return batch[0].ids

    def least_tokens(self, text: str) -> int:
        """How many ids the text has at least, without a look at it."""
        return len(text) // self._most_chars_of_token

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special_ids

    def token_bytes(self, token_id: int) -> bytes:
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._look_up(token_id)
        return known

    def token_text(self, token_id: int) -> str:
        """The token on its own, as logprobs show it; part of a character is shown as its bytes."""
        raw = self.token_bytes(token_id)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def _look_up(self, token_id: int) -> bytes:
        added = self._added.get(token_id)
        if added is not None:
            return added.encode()
        token = self._tokenizer.id_to_token(token_id)
        if token is None:  # a row of the model's vocabulary that the tokenizer leaves empty
            return b""
        if self._is_byte_level:
            return bytes(BYTE_OF_CHAR[char] for char in token)
        if len(token) == BYTE_FALLBACK_LENGTH and token.startswith("<0x"):
            return bytes([int(token[3:5], 16)])
        return token.replace(METASPACE, " ").encode()


def _is_byte_level(path: Path, decoder: Any) -> bool:
    """Which of the two ways this tokenizer writes bytes as text; others are refused by name."""
    kinds = _decoder_kinds(decoder)
    if "ByteLevel" in kinds:
        return True
    if "ByteFallback" in kinds or "Metaspace" in kinds:
        return False
    raise ModelDirectoryError(f"{path}: decoder {'+'.join(kinds) or 'none'} is not supported")


def _decoder_kinds(decoder: Any) -> list[str]:
    if not isinstance(decoder, dict):
        return []
    description = cast("dict[str, Any]", decoder)
    if description.get("type") == "Sequence":
        return [kind for part in description["decoders"] for kind in _decoder_kinds(part)]
    return [str(description.get("type"))]
