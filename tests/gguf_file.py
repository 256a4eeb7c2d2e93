"""Makes a GGUF file of one small Llama layer with a byte-level vocabulary."""

from __future__ import annotations

from pathlib import Path

import gguf
import gguf.quants
import numpy as np
import numpy.typing as npt

from segue.model_files.byte_level import CHAR_OF_BYTE

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN = 64, 4, 2, 16, 96
TOKENS = ["<|end|>", *CHAR_OF_BYTE.values(), "ĠĠ", "ab"]
MERGES = ["Ġ Ġ", "a b"]


# Pieces and scores as SentencePiece gives them: the longer ones are made of the shorter.
PIECES = ["▁", "a", "b", "c", "l", "e", "o", "h", "ab", "▁a", "he", "ll", "llo", "▁he", "hello"]
SCORES = [-3.0, -4.0, -4.1, -4.2, -4.3, -4.4, -4.5, -4.6, -1.5, -1.0, -1.2, -0.9, -0.8, -1.1, -0.5]


def _write_byte_level(writer: gguf.GGUFWriter, pre: str) -> int:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] + [1] * (len(TOKENS) - 1))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    return len(TOKENS)


def _write_sentencepiece(writer: gguf.GGUFWriter) -> int:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * 259 + SCORES)
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * len(PIECES))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    return len(tokens)


def write_gguf(
    path: Path,
    pre: str = "smollm",
    architecture: str = "llama",
    quantization: gguf.GGMLQuantizationType | None = None,
    is_sentencepiece: bool = False,
) -> dict[str, npt.NDArray[np.float32]]:
    """Writes it, and returns the weights as they were before quantisation."""
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-5)
    if is_sentencepiece:
        num_tokens = _write_sentencepiece(writer)
    else:
        num_tokens = _write_byte_level(writer, pre)
    writer.add_chat_template("{{ messages[0].content }}")
    shapes = {
        "token_embd": (num_tokens, HIDDEN),
        "output_norm": (HIDDEN,),
        "blk.0.attn_norm": (HIDDEN,),
        "blk.0.attn_q": (HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_k": (KV_HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_v": (KV_HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_output": (HIDDEN, HEADS * HEAD_DIM),
        "blk.0.ffn_norm": (HIDDEN,),
        "blk.0.ffn_gate": (FFN, HIDDEN),
        "blk.0.ffn_up": (FFN, HIDDEN),
        "blk.0.ffn_down": (HIDDEN, FFN),
    }
    weights = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    for name, values in weights.items():
        if quantization is None or values.ndim == 1:
            writer.add_tensor(f"{name}.weight", values)
        else:
            packed = gguf.quants.quantize(values, quantization)
            writer.add_tensor(f"{name}.weight", packed, raw_dtype=quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights
