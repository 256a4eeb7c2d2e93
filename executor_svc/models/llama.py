"""Llama, and what is built like it: rotary grouped attention, RMS norms, gated feed-forward.

Mistral, Qwen2, Qwen3 and the mixtures of experts differ in what `DecoderConfig` says.
Knows tensors and Hugging Face's names for them; no request, no cache management. Invariant: as
`CausalLM` demands, a token's result depends on its own context alone, bit by bit.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from executor_svc.kv_cache import KVCache, KVCacheSpec
from executor_svc.layers.attention import Attention, HeadNorms
from executor_svc.layers.mixture_of_experts import MixtureOfExperts
from executor_svc.layers.mlp import GatedMLP
from executor_svc.layers.rotary import RotaryTable
from executor_svc.models.decoder_config import DecoderConfig, ExpertsConfig, read_decoder_config
from executor_svc.models.decoder_layers import DecoderLayers, LayersInput, LlamaLayer
from executor_svc.quantization import NONE, hold, hold_head
from executor_svc.weights import ModelError, Weights
from kernels import AttentionMetadata, AttentionShape, RowExactLinear, RowPadding


class LlamaModel:
    """See `CausalLM`."""

    def __init__(
        self, config: DecoderConfig, weights: Weights, dtype: torch.dtype, quantization: str
    ) -> None:
        self._config = config
        try:
            self._rotary = RotaryTable(config.rotary, dtype, weights.device)
        except (KeyError, ValueError) as error:
            raise ModelError(f"config.json: {error}") from error
        hidden = (config.hidden_size,)
        embedding_shape = (config.vocab_size, config.hidden_size)
        self._embedding = weights.get("model.embed_tokens.weight", embedding_shape)
        padding = RowPadding()
        layers = [
            _load_layer(config, _LayerWeights(weights, index, padding, quantization))
            for index in range(config.num_layers)
        ]
        self._dtype = dtype
        final_norm = weights.get("model.norm.weight", hidden)
        any_blocks = self.attention_shape(block_size=0)
        self._layers = DecoderLayers(layers, final_norm, any_blocks, config.rms_norm_eps)
        is_tied = config.has_tied_embeddings or "lm_head.weight" not in weights
        head = self._embedding if is_tied else weights.get("lm_head.weight", embedding_shape)
        self._head = RowExactLinear(hold_head(head, quantization), padding=padding)

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
        # What layers add is summed in float32: in bfloat16 half of the logits' error is this sum's.
        residual = F.embedding(input_ids, self._embedding).float()
        given = LayersInput(self._rotary.lookup(positions), metadata, kv_cache)
        return self._layers(residual, given)

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self._head(hidden_states)

    def products(self) -> dict[str, RowExactLinear]:
        products = {"lm_head": self._head}
        for layer in self._layers.layers:  # a shape that several layers have is tried once
            for name, product in layer.products().items():
                products.setdefault(name, product)
        return products

    def attention_shape(self, block_size: int) -> AttentionShape:
        config = self._config
        return AttentionShape(
            config.num_heads, config.num_kv_heads, config.head_dim, block_size, self._dtype
        )


def build_llama(
    config: dict[str, Any], weights: Weights, dtype: torch.dtype, quantization: str = NONE
) -> LlamaModel:
    return LlamaModel(read_decoder_config(config), weights, dtype, quantization)


def _load_layer(config: DecoderConfig, load: _LayerWeights) -> LlamaLayer:
    experts = config.experts
    is_sparse = experts is not None and experts.is_sparse[load.index]
    return LlamaLayer(
        input_norm=load.vector("input_layernorm.weight", config.hidden_size),
        attention=_load_attention(config, load),
        post_attention_norm=load.vector("post_attention_layernorm.weight", config.hidden_size),
        mlp=_load_experts(config, experts, load)
        if is_sparse and experts is not None
        else _load_mlp(config, load),
        window=config.windows[load.index],
    )


class _LayerWeights:
    """The weights of one layer, by their names within it."""

    def __init__(
        self, weights: Weights, index: int, padding: RowPadding, quantization: str
    ) -> None:
        self.index = index
        self._weights = weights
        self._prefix = f"model.layers.{index}."
        self._padding = padding
        self._quantization = quantization

    def vector(self, name: str, size: int) -> torch.Tensor:
        return self._weights.get(self._prefix + name, (size,))

    def fused(
        self, parts: dict[str, int], in_features: int, has_bias: bool = False
    ) -> RowExactLinear:
        """The weights of several products of the same input, one below the other."""
        get = self._weights.get
        named = [(self._prefix + name, size) for name, size in parts.items()]
        weight = torch.cat([get(f"{name}.weight", (size, in_features)) for name, size in named])
        bias = None
        if has_bias:
            bias = torch.cat([get(f"{name}.bias", (size,)) for name, size in named])
        return RowExactLinear(hold(weight, self._quantization), bias, self._padding)

    def router(self, name: str, num_experts: int, in_features: int) -> RowExactLinear:
        """Never quantised: it is small, and a near choice of experts has to stay one."""
        weight = self._weights.get(f"{self._prefix}{name}.weight", (num_experts, in_features))
        return RowExactLinear(weight, padding=self._padding)


def _load_attention(config: DecoderConfig, load: _LayerWeights) -> Attention:
    hidden, head_dim = config.hidden_size, config.head_dim
    query_size = config.num_heads * head_dim
    kv_size = config.num_kv_heads * head_dim
    qkv = {
        "self_attn.q_proj": query_size,
        "self_attn.k_proj": kv_size,
        "self_attn.v_proj": kv_size,
    }
    head_norms = None
    if config.has_head_norms:
        head_norms = HeadNorms(
            load.vector("self_attn.q_norm.weight", head_dim),
            load.vector("self_attn.k_norm.weight", head_dim),
            config.rms_norm_eps,
        )
    return Attention(
        load.fused(qkv, hidden, config.has_qkv_bias),
        load.fused({"self_attn.o_proj": hidden}, query_size, config.has_output_bias),
        config.num_heads,
        head_dim,
        head_norms,
    )


def _load_mlp(config: DecoderConfig, load: _LayerWeights) -> GatedMLP:
    hidden, inner = config.hidden_size, config.intermediate_size
    gate_up = {"mlp.gate_proj": inner, "mlp.up_proj": inner}
    return GatedMLP(
        load.fused(gate_up, hidden, config.has_mlp_bias),
        load.fused({"mlp.down_proj": hidden}, inner, config.has_mlp_bias),
    )


def _load_experts(
    config: DecoderConfig, experts: ExpertsConfig, load: _LayerWeights
) -> MixtureOfExperts:
    hidden, inner, names = config.hidden_size, experts.intermediate_size, experts.names

    def expert(number: int) -> GatedMLP:
        prefix = f"{names.block}.experts.{number}."
        return GatedMLP(
            load.fused({prefix + names.gate: inner, prefix + names.up: inner}, hidden),
            load.fused({prefix + names.down: hidden}, inner),
        )

    return MixtureOfExperts(
        load.router(f"{names.block}.gate", experts.num_experts, hidden),
        [expert(number) for number in range(experts.num_experts)],
        experts.num_experts_per_token,
        experts.normalizes,
    )
