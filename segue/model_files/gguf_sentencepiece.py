"""A GGUF file's SentencePiece vocabulary ("llama" in GGUF's words) as a BPE tokenizer.

Knows pieces and scores, which stand for the merges that the file does not have. Invariant: a merge
comes before another where its result has the higher score, as SentencePiece's own BPE does it.
"""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer, decoders, normalizers
from tokenizers.models import BPE

from segue.model_files.gguf_config import GGUFMetadata

SPACE = "▁"


def make_sentencepiece_tokenizer(metadata: GGUFMetadata, tokens: list[str]) -> Tokenizer:
    scores: list[float] = metadata.require("tokenizer.ggml.scores")
    unknown = int(metadata.get("tokenizer.ggml.unknown_token_id") or 0)
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    model = BPE(
        vocab=vocab,
        merges=merges_of_scores(vocab, scores),
        unk_token=tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    has_prefix = metadata.get("tokenizer.ggml.add_space_prefix")
    adds_prefix = has_prefix is None or bool(has_prefix)
    replace = normalizers.Replace(" ", SPACE)
    prefix = [normalizers.Prepend(SPACE)] if adds_prefix else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, replace])
    strip: list[Any] = [decoders.Strip(" ", 1, 0)] if adds_prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return tokenizer


def merges_of_scores(vocab: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """Each way to make a piece of two others, the pieces with the highest scores first."""
    merges: list[tuple[float, int, int, str, str]] = []
    for piece, token_id in vocab.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in vocab and right in vocab:
                merges.append((scores[token_id], len(left), len(right), left, right))
    merges.sort(key=lambda merge: merge[:3], reverse=True)
    return [(left, right) for *_, left, right in merges]
