"""A GGUF file's vocabulary as tokenizer.json and tokenizer_config.json.

Knows byte-level BPE ("gpt2" in GGUF's words) and SentencePiece ("llama"). Invariant: how text is
cut before the merges is decided by `tokenizer.ggml.pre` through a table, see
`gguf_pre_tokenizers.py`; a name that is not in it is refused.
"""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, processors
from tokenizers.models import BPE

from segue.model_files.gguf_config import GGUFMetadata
from segue.model_files.gguf_pre_tokenizers import text_cutting
from segue.model_files.gguf_sentencepiece import make_sentencepiece_tokenizer
from segue.model_files.model_directory import ModelDirectoryError

TOKEN_TYPE_UNKNOWN = 2
TOKEN_TYPE_CONTROL = 3
TOKEN_TYPE_USER_DEFINED = 4
SPECIAL = (TOKEN_TYPE_UNKNOWN, TOKEN_TYPE_CONTROL)


def make_tokenizer(metadata: GGUFMetadata) -> Tokenizer:
    kind = metadata.require("tokenizer.ggml.model")
    tokens: list[str] = metadata.require("tokenizer.ggml.tokens")
    adds_bos = metadata.get("tokenizer.ggml.add_bos_token")
    if kind == "gpt2":
        cutting = text_cutting(str(metadata.require("tokenizer.ggml.pre")))
        merges = [merge.split(" ", 1) for merge in metadata.require("tokenizer.ggml.merges")]
        vocab = {token: token_id for token_id, token in enumerate(tokens)}
        model = BPE(
            vocab=vocab,
            merges=[(left, right) for left, right in merges],
            ignore_merges=cutting.ignores_merges,
        )
        tokenizer = Tokenizer(model)
        if cutting.normalizer is not None:
            tokenizer.normalizer = cutting.normalizer()
        tokenizer.pre_tokenizer = cutting.make_pre_tokenizer()
        tokenizer.decoder = decoders.ByteLevel()
        default_adds_bos = cutting.adds_bos
    elif kind == "llama":
        tokenizer = make_sentencepiece_tokenizer(metadata, tokens)
        default_adds_bos = True
    else:
        raise ModelDirectoryError(f"GGUF tokenizer {kind!r} is not one of: gpt2, llama")
    _add_special_tokens(tokenizer, tokens, metadata.get("tokenizer.ggml.token_type") or [])
    if default_adds_bos if adds_bos is None else adds_bos:
        bos_token_id = int(metadata.require("tokenizer.ggml.bos_token_id"))
        bos = tokens[bos_token_id]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, bos_token_id)]
        )
    return tokenizer


def make_tokenizer_config(metadata: GGUFMetadata) -> dict[str, Any]:
    """Names of the special tokens, and the chat template if there is one."""
    tokens: list[str] = metadata.require("tokenizer.ggml.tokens")
    names = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    for theirs, ours in names.items():
        token_id = metadata.get(f"tokenizer.ggml.{theirs}_token_id")
        if token_id is not None:
            config[f"{ours}_token"] = tokens[int(token_id)]
    chat_template = metadata.get("tokenizer.chat_template")
    if chat_template is not None:
        config["chat_template"] = chat_template
    return config


def _add_special_tokens(tokenizer: Tokenizer, tokens: list[str], types: list[int]) -> None:
    """Control tokens are special (skipped when decoding); user-defined ones are only whole."""
    added: dict[bool, list[AddedToken]] = {True: [], False: []}
    for token, kind in zip(tokens, types, strict=False):
        if kind in (*SPECIAL, TOKEN_TYPE_USER_DEFINED):
            is_special = kind in SPECIAL
            added[is_special].append(AddedToken(token, normalized=False, special=is_special))
    # The library's stubs leave the list's type open.
    tokenizer.add_special_tokens(added[True])  # pyright: ignore[reportUnknownMemberType]
    tokenizer.add_tokens(added[False])  # pyright: ignore[reportUnknownMemberType]
