"""Writes a Hugging Face checkpoint as a GGUF file, as llama.cpp's converter does.

Knows both layouts. Invariant: what a quantisation rounds aside, the file holds the same model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import gguf.quants
import numpy as np
import numpy.typing as npt
from safetensors.torch import load_file

from executor_svc.models.decoder_config import DecoderConfig, read_decoder_config
from segue.model_files.gguf_rope import llama3_factors

NAMES = {
    "model.embed_tokens.": "token_embd.",
    "model.norm.": "output_norm.",
    "lm_head.": "output.",
    "model.layers.": "blk.",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "block_sparse_moe.gate": "ffn_gate_inp",
    "mlp.gate.": "ffn_gate_inp.",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
ARCHITECTURES = {"qwen2": "qwen2", "qwen3": "qwen3", "qwen3_moe": "qwen3moe"}
Array = npt.NDArray[np.float32]


def write_gguf_of(
    model_dir: Path, path: Path, quantization: gguf.GGMLQuantizationType | None = None
) -> None:
    """The vocabulary is as long as the model's, and means nothing."""
    values = json.loads((model_dir / "config.json").read_text())
    config = read_decoder_config(values)
    architecture = ARCHITECTURES.get(values["model_type"], "llama")
    writer = gguf.GGUFWriter(path, architecture)
    _write_metadata(writer, config, values)
    for name, tensor in _tensors(config, model_dir, is_permuted=architecture == "llama").items():
        if quantization is None or tensor.ndim == 1:
            writer.add_tensor(name, tensor)
        else:
            packed = gguf.quants.quantize(tensor, quantization)
            writer.add_tensor(name, packed, raw_dtype=quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_metadata(writer: gguf.GGUFWriter, config: DecoderConfig, values: dict[str, Any]) -> None:
    writer.add_block_count(config.num_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_freq_base(config.rotary.theta)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if values["model_type"] == "mistral":
        writer.add_sliding_window(config.windows[0])
    if config.experts is not None:
        writer.add_expert_count(config.experts.num_experts)
        writer.add_expert_used_count(config.experts.num_experts_per_token)
        writer.add_expert_feed_forward_length(config.experts.intermediate_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    tokens = ["t", "1", "t1", *(f"x{number}" for number in range(3, config.vocab_size))]
    writer.add_token_list(tokens)
    writer.add_token_merges(["t 1"])


def _tensors(config: DecoderConfig, model_dir: Path, *, is_permuted: bool) -> dict[str, Array]:
    tensors: dict[str, Array] = {}
    experts: dict[str, list[Array]] = {}
    for name, tensor in load_file(model_dir / "model.safetensors").items():
        values = tensor.float().numpy()
        if is_permuted and "q_proj" in name:
            values = _permuted(values, config.num_heads)
        if is_permuted and "k_proj" in name:
            values = _permuted(values, config.num_kv_heads)
        if ".experts." not in name:
            tensors[_gguf_name(name)] = values
    if config.experts is not None:
        experts = _experts(config, model_dir)
    scaling = config.rotary.scaling
    if scaling.get("rope_type") == "llama3":
        length = int(scaling["original_max_position_embeddings"])
        factors = llama3_factors(config.head_dim, config.rotary.theta, scaling["factor"], length)
        tensors["rope_freqs.weight"] = factors.astype(np.float32)
    return tensors | {name: np.stack(parts) for name, parts in experts.items()}


def _experts(config: DecoderConfig, model_dir: Path) -> dict[str, list[Array]]:
    assert config.experts is not None
    names, count = config.experts.names, config.experts.num_experts
    stored = load_file(model_dir / "model.safetensors")
    kinds = {names.gate: "ffn_gate_exps", names.up: "ffn_up_exps", names.down: "ffn_down_exps"}
    return {
        f"blk.{layer}.{theirs}.weight": [
            stored[f"model.layers.{layer}.{names.block}.experts.{expert}.{ours}.weight"]
            .float()
            .numpy()
            for expert in range(count)
        ]
        for layer, is_sparse in enumerate(config.experts.is_sparse)
        if is_sparse
        for ours, theirs in kinds.items()
    }


def _gguf_name(name: str) -> str:
    for ours, theirs in NAMES.items():
        name = name.replace(ours, theirs)
    return name


def _permuted(rows: Array, num_heads: int) -> Array:
    pairs = rows.reshape(num_heads, 2, rows.shape[0] // num_heads // 2, -1)
    return pairs.swapaxes(1, 2).reshape(rows.shape)
