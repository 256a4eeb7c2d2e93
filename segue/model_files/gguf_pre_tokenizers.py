"""How text is cut before byte-level merges, by the name that a GGUF file gives it.

Knows the regular expressions of the models' own tokenizer.json. Invariant: a name that is not in
the table is refused; nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers

from segue.model_files.model_directory import ModelDirectoryError

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{TAIL}"
QWEN2 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{TAIL}"
UPPER, LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]*[{LOWER}]+|[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]+[{LOWER}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _smollm() -> pre_tokenizers.PreTokenizer:
    """Every digit stands alone; the rest is cut as GPT-2 does."""
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _split_by(pattern: str) -> Callable[[], pre_tokenizers.PreTokenizer]:
    def make() -> pre_tokenizers.PreTokenizer:
        split = pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False)
        bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([split, bytes_only])

    return make


@dataclass(slots=True, frozen=True)
class TextCutting:
    """`ignores_merges`: a piece that is a token whole is taken whole."""

    make_pre_tokenizer: Callable[[], pre_tokenizers.PreTokenizer]
    ignores_merges: bool = False
    adds_bos: bool = False  # where the file does not say
    normalizer: Callable[[], normalizers.Normalizer] | None = None


LLAMA3_CUTTING = TextCutting(_split_by(LLAMA3), ignores_merges=True, adds_bos=True)
QWEN2_CUTTING = TextCutting(_split_by(QWEN2), normalizer=normalizers.NFC)
PRE_TOKENIZERS = {
    "deepseek-r1-qwen": QWEN2_CUTTING,
    "gpt-2": TextCutting(_gpt2),
    "llama-bpe": LLAMA3_CUTTING,
    "llama-v3": LLAMA3_CUTTING,
    "llama3": LLAMA3_CUTTING,
    "qwen2": QWEN2_CUTTING,
    "smollm": TextCutting(_smollm),
    "tekken": TextCutting(_split_by(TEKKEN), ignores_merges=True, adds_bos=True),
}


def text_cutting(name: str) -> TextCutting:
    """Of `tokenizer.ggml.pre`."""
    if name not in PRE_TOKENIZERS:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise ModelDirectoryError(f"GGUF pre-tokenizer {name!r} is not one of: {known}")
    return PRE_TOKENIZERS[name]
