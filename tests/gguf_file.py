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


def write_gguf(
    path: Path,
    pre: str = "smollm",
    architecture: str = "llama",
    quantization: gguf.GGMLQuantizationType | None = None,
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
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] + [1] * (len(TOKENS) - 1))
    writer.add_token_merges(MERGES)
    writer.add_eos_token_id(0)
    writer.add_chat_template("{{ messages[0].content }}")
    shapes = {
        "token_embd": (len(TOKENS), HIDDEN),
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
