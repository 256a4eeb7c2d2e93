"""Writes checkpoints of random weights: of any architecture that the executor knows, of any size.

Knows Hugging Face's file layout and names. Invariant: the same arguments give the same bytes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from executor_svc.models.decoder_config import DecoderConfig, read_decoder_config

MAX_RANDOM_ROWS = 2048
TINY: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 320,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "dtype": "float32",
}
MISTRAL = {"model_type": "mistral", "sliding_window": 40}
QWEN2 = {
    "model_type": "qwen2",
    "use_sliding_window": True,
    "sliding_window": 150,
    "max_window_layers": 1,
}
QWEN3 = {"model_type": "qwen3", "head_dim": 24}
QWEN3_MOE = {
    "model_type": "qwen3_moe",
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
    "norm_topk_prob": True,
    "mlp_only_layers": [1],
}
MIXTRAL = {
    "model_type": "mixtral",
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "tie_word_embeddings": False,
}
LLAMA3 = {
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    }
}
FAMILIES: dict[str, dict[str, Any]] = {
    "mistral": MISTRAL,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "qwen3_moe": QWEN3_MOE,
    "mixtral": MIXTRAL,
    "llama3": LLAMA3,
}


def write_tiny_llama(model_dir: Path, seed: int = 0, **changes: Any) -> Path:
    """A checkpoint of random weights, large enough that its logits differ clearly."""
    return write_checkpoint(model_dir, TINY | changes, seed)


def write_checkpoint(model_dir: Path, config: dict[str, Any], seed: int = 0) -> Path:
    parsed = read_decoder_config(config)
    random = _Random(seed, torch.bfloat16 if config["dtype"] == "bfloat16" else torch.float32)
    hidden = parsed.hidden_size
    tensors = {"model.embed_tokens.weight": random.weight(parsed.vocab_size, hidden) * 4}
    for index in range(parsed.num_layers):
        tensors |= _layer(parsed, index, random)
    tensors["model.norm.weight"] = random.norm(hidden)
    if not parsed.has_tied_embeddings:
        tensors["lm_head.weight"] = random.weight(parsed.vocab_size, hidden)
    model_dir.mkdir(parents=True, exist_ok=True)
    (model_dir / "config.json").write_text(json.dumps(config))
    save_file(tensors, model_dir / "model.safetensors")
    return model_dir


class _Random:
    def __init__(self, seed: int, dtype: torch.dtype) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._dtype = dtype

    def weight(self, *shape: int) -> torch.Tensor:
        """Rows beyond MAX_RANDOM_ROWS come again: of a real vocabulary, drawing takes seconds."""
        drawn = (min(shape[0], MAX_RANDOM_ROWS), *shape[1:])
        values = torch.randn(drawn, generator=self._generator) / shape[-1] ** 0.5
        repeats = -(-shape[0] // drawn[0])
        repeated = values.to(self._dtype).repeat(repeats, *[1] * (len(shape) - 1))
        return repeated[: shape[0]].contiguous()

    def norm(self, size: int) -> torch.Tensor:
        return (1 + 0.1 * torch.randn(size, generator=self._generator)).to(self._dtype)


def _layer(config: DecoderConfig, index: int, random: _Random) -> dict[str, torch.Tensor]:
    prefix = f"model.layers.{index}."
    hidden = config.hidden_size
    query_size = config.num_heads * config.head_dim
    kv_size = config.num_kv_heads * config.head_dim
    tensors = {
        "input_layernorm.weight": random.norm(hidden),
        "post_attention_layernorm.weight": random.norm(hidden),
        "self_attn.q_proj.weight": random.weight(query_size, hidden),
        "self_attn.k_proj.weight": random.weight(kv_size, hidden),
        "self_attn.v_proj.weight": random.weight(kv_size, hidden),
        "self_attn.o_proj.weight": random.weight(hidden, query_size),
        **_feed_forward(config, index, random),
    }
    if config.has_qkv_bias:
        for name, size in (("q", query_size), ("k", kv_size), ("v", kv_size)):
            tensors[f"self_attn.{name}_proj.bias"] = random.weight(size)
    if config.has_output_bias:
        tensors["self_attn.o_proj.bias"] = random.weight(hidden)
    if config.has_head_norms:
        tensors["self_attn.q_norm.weight"] = random.norm(config.head_dim)
        tensors["self_attn.k_norm.weight"] = random.norm(config.head_dim)
    return {prefix + name: tensor for name, tensor in tensors.items()}


def _feed_forward(config: DecoderConfig, index: int, random: _Random) -> dict[str, torch.Tensor]:
    hidden, inner = config.hidden_size, config.intermediate_size
    experts = config.experts
    if experts is None or not experts.is_sparse[index]:
        sizes = {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
        dense = {f"mlp.{name}_proj.weight": random.weight(*size) for name, size in sizes.items()}
        if config.has_mlp_bias:
            for name, size in sizes.items():
                dense[f"mlp.{name}_proj.bias"] = random.weight(size[0])
        return dense
    names, inner = experts.names, experts.intermediate_size
    tensors = {f"{names.block}.gate.weight": random.weight(experts.num_experts, hidden) * 4}
    for expert in range(experts.num_experts):
        prefix = f"{names.block}.experts.{expert}."
        tensors |= {
            f"{prefix}{names.gate}.weight": random.weight(inner, hidden),
            f"{prefix}{names.up}.weight": random.weight(inner, hidden),
            f"{prefix}{names.down}.weight": random.weight(hidden, inner),
        }
    return tensors
