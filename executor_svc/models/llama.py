"""Llama, and what is built like it: rotary grouped attention, RMS norms, gated feed-forward.

Knows tensors and Hugging Face's names for them; no request, no cache management. Invariant: as
`CausalLM` demands, a token's result depends on its own context alone, bit by bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from executor_svc.kv_cache import KVCache, KVCacheSpec
from executor_svc.layers.attention import Attention, AttentionInput
from executor_svc.layers.mlp import GatedMLP
from executor_svc.layers.rotary import RotaryConfig, RotaryTable
from executor_svc.weights import ModelError, Weights
from kernels import (
    AttentionMetadata,
    AttentionShape,
    RowExactLinear,
    RowPadding,
    add_rms_norm,
    plan_attention,
    rms_norm,
)


@dataclass(slots=True, frozen=True)
class LlamaConfig:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    rotary: RotaryConfig
    has_tied_embeddings: bool
    has_attention_bias: bool
    has_mlp_bias: bool

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> LlamaConfig:
        """Of config.json. Raises ModelError for what would be computed wrongly."""
        activation = config.get("hidden_act", "silu")
        if activation != "silu":
            raise ModelError(f"hidden_act {activation!r} is not silu")
        try:
            hidden_size = int(config["hidden_size"])
            num_heads = int(config["num_attention_heads"])
            num_kv_heads = int(config.get("num_key_value_heads") or num_heads)
            if num_heads % num_kv_heads:
                raise ModelError(f"{num_heads} heads can not share {num_kv_heads} key heads")
            head_dim = int(config.get("head_dim") or hidden_size // num_heads)
            max_positions = int(config["max_position_embeddings"])
            scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
            theta = scaling.get("rope_theta") or config.get("rope_theta") or 10000.0
            return cls(
                vocab_size=int(config["vocab_size"]),
                hidden_size=hidden_size,
                intermediate_size=int(config["intermediate_size"]),
                num_layers=int(config["num_hidden_layers"]),
                num_heads=num_heads,
                num_kv_heads=num_kv_heads,
                head_dim=head_dim,
                rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
                max_position_embeddings=max_positions,
                rotary=RotaryConfig(head_dim, float(theta), max_positions, scaling),
                has_tied_embeddings=bool(config.get("tie_word_embeddings", False)),
                has_attention_bias=bool(config.get("attention_bias", False)),
                has_mlp_bias=bool(config.get("mlp_bias", False)),
            )
        except KeyError as error:
            raise ModelError(f"config.json has no {error.args[0]}") from error
        except (TypeError, ValueError) as error:
            raise ModelError(f"config.json: {error}") from error


@dataclass(slots=True, frozen=True)
class LlamaLayer:
    """Pre-norm attention and feed-forward; the residual runs beside them."""

    input_norm: torch.Tensor  # [hidden_size]
    attention: Attention
    post_attention_norm: torch.Tensor  # [hidden_size]
    mlp: GatedMLP


class LlamaModel:
    """See `CausalLM`."""

    def __init__(self, config: LlamaConfig, weights: Weights, dtype: torch.dtype) -> None:
        self._config = config
        try:
            self._rotary = RotaryTable(config.rotary, dtype)
        except (KeyError, ValueError) as error:
            raise ModelError(f"config.json: {error}") from error
        hidden = (config.hidden_size,)
        embedding_shape = (config.vocab_size, config.hidden_size)
        self._embedding = weights.get("model.embed_tokens.weight", embedding_shape)
        padding = RowPadding()
        self._layers = [_load_layer(config, weights, i, padding) for i in range(config.num_layers)]
        self._final_norm = weights.get("model.norm.weight", hidden)
        is_tied = config.has_tied_embeddings or "lm_head.weight" not in weights
        self._head = RowExactLinear(
            self._embedding if is_tied else weights.get("lm_head.weight", embedding_shape),
            padding=padding,
        )
        self._dtype = dtype

    @property
    def vocab_size(self) -> int:
        return self._config.vocab_size

    @property
    def max_model_len(self) -> int:
        return self._config.max_position_embeddings

    @property
    def kv_cache_spec(self) -> KVCacheSpec:
        config = self._config
        return KVCacheSpec(config.num_layers, config.num_kv_heads, config.head_dim, self._dtype)

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        kv_cache: KVCache,
        metadata: AttentionMetadata,
    ) -> torch.Tensor:
        eps = self._config.rms_norm_eps
        cos, sin = self._rotary.lookup(positions)
        plan = plan_attention(metadata, self.attention_shape(kv_cache.block_size))
        step = AttentionInput(cos, sin, metadata.slot_mapping, plan)
        residual = F.embedding(input_ids, self._embedding)
        hidden_states = rms_norm(residual, self._layers[0].input_norm, eps)
        for index, layer in enumerate(self._layers):
            attended = layer.attention(
                hidden_states, kv_cache.key(index), kv_cache.value(index), step
            )
            hidden_states, residual = add_rms_norm(
                attended, residual, layer.post_attention_norm, eps
            )
            is_last = index + 1 == len(self._layers)
            next_norm = self._final_norm if is_last else self._layers[index + 1].input_norm
            hidden_states, residual = add_rms_norm(
                layer.mlp(hidden_states), residual, next_norm, eps
            )
        return hidden_states

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self._head(hidden_states).float()

    def products(self) -> dict[str, RowExactLinear]:
        first = self._layers[0]
        return first.attention.products() | first.mlp.products() | {"lm_head": self._head}

    def attention_shape(self, block_size: int) -> AttentionShape:
        config = self._config
        return AttentionShape(
            config.num_heads, config.num_kv_heads, config.head_dim, block_size, self._dtype
        )


def build_llama(config: dict[str, Any], weights: Weights, dtype: torch.dtype) -> LlamaModel:
    return LlamaModel(LlamaConfig.from_dict(config), weights, dtype)


def _load_layer(
    config: LlamaConfig, weights: Weights, index: int, padding: RowPadding
) -> LlamaLayer:
    prefix = f"model.layers.{index}."
    hidden, inner = config.hidden_size, config.intermediate_size
    query_size = config.num_heads * config.head_dim
    kv_size = config.num_kv_heads * config.head_dim

    def fused(parts: dict[str, int], in_features: int, has_bias: bool) -> RowExactLinear:
        """The weights of several products of the same input, one below the other."""
        named = [(prefix + name, size) for name, size in parts.items()]
        weight = torch.cat([weights.get(f"{n}.weight", (size, in_features)) for n, size in named])
        if not has_bias:
            return RowExactLinear(weight, padding=padding)
        bias = torch.cat([weights.get(f"{n}.bias", (size,)) for n, size in named])
        return RowExactLinear(weight, bias, padding)

    qkv = {
        "self_attn.q_proj": query_size,
        "self_attn.k_proj": kv_size,
        "self_attn.v_proj": kv_size,
    }
    return LlamaLayer(
        input_norm=weights.get(prefix + "input_layernorm.weight", (hidden,)),
        attention=Attention(
            fused(qkv, hidden, config.has_attention_bias),
            fused({"self_attn.o_proj": hidden}, query_size, config.has_attention_bias),
            config.num_heads,
            config.head_dim,
        ),
        post_attention_norm=weights.get(prefix + "post_attention_layernorm.weight", (hidden,)),
        mlp=GatedMLP(
            fused({"mlp.gate_proj": inner, "mlp.up_proj": inner}, hidden, config.has_mlp_bias),
            fused({"mlp.down_proj": hidden}, inner, config.has_mlp_bias),
        ),
    )
