"""The layers of a decoder, run one after the other on the residual stream.

Knows ops and the KV cache, no config and no file. Invariant: the layers as one call of the compiled
kernels, where these can, and op by op give the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from executor_svc.kv_cache import KVCache
from executor_svc.layers.attention import Attention, AttentionInput
from executor_svc.layers.mixture_of_experts import MixtureOfExperts
from executor_svc.layers.mlp import GatedMLP
from kernels import (
    AttentionMetadata,
    AttentionShape,
    DecoderLayer,
    DecoderStep,
    NativeAttentionPlan,
    NativeDecoder,
    RowExactLinear,
    add_rms_norm,
    plan_attention,
    rms_norm,
)


@dataclass(slots=True, frozen=True)
class LlamaLayer:
    """Pre-norm attention and feed-forward; the residual runs beside them."""

    input_norm: torch.Tensor  # [hidden_size]
    attention: Attention
    post_attention_norm: torch.Tensor  # [hidden_size]
    mlp: GatedMLP | MixtureOfExperts
    window: int  # 0: it attends to all that was

    def products(self) -> dict[str, RowExactLinear]:
        return self.attention.products() | self.mlp.products()


@dataclass(slots=True, frozen=True)
class LayersInput:
    """What all layers get of one step."""

    rotation: tuple[torch.Tensor, torch.Tensor]  # cos and sin, [num_tokens, 1, head_dim]
    metadata: AttentionMetadata
    kv_cache: KVCache


class DecoderLayers:
    def __init__(
        self, layers: list[LlamaLayer], final_norm: torch.Tensor, shape: AttentionShape, eps: float
    ) -> None:
        """shape: of every layer's attention, but for block size and window."""
        self.layers = layers
        self._shape = shape
        self._eps = eps
        # The norm behind a layer is the next one's.
        self._next_norms = [*(layer.input_norm for layer in layers[1:]), final_norm]
        self._native = self._fused()

    def __call__(self, residual: torch.Tensor, given: LayersInput) -> torch.Tensor:
        """residual: the embedded tokens, [num_tokens, hidden_size] float32. The hidden states
        behind the last norm."""
        hidden_states = rms_norm(residual, self.layers[0].input_norm, self._eps)
        shape = replace(self._shape, block_size=given.kv_cache.block_size)
        if self._native is None:
            return self._op_by_op(hidden_states, residual, given, shape)
        plan = plan_attention(given.metadata, shape)
        assert isinstance(plan, NativeAttentionPlan)
        indices = range(len(self.layers))
        return self._native(
            DecoderStep(
                hidden_states,
                residual,
                given.rotation,
                given.metadata.slot_mapping,
                plan,
                [given.kv_cache.key(index) for index in indices],
                [given.kv_cache.value(index) for index in indices],
            )
        )

    def _op_by_op(
        self,
        hidden_states: torch.Tensor,
        residual: torch.Tensor,
        given: LayersInput,
        shape: AttentionShape,
    ) -> torch.Tensor:
        inputs = {
            window: AttentionInput(
                *given.rotation,
                given.metadata.slot_mapping,
                plan_attention(given.metadata, replace(shape, window=window)),
            )
            for window in sorted({layer.window for layer in self.layers})
        }
        for index, layer in enumerate(self.layers):
            caches = given.kv_cache.key(index), given.kv_cache.value(index)
            attended = layer.attention(hidden_states, *caches, inputs[layer.window])
            hidden_states, residual = add_rms_norm(
                attended, residual, layer.post_attention_norm, self._eps
            )
            hidden_states, residual = add_rms_norm(
                layer.mlp(hidden_states), residual, self._next_norms[index], self._eps
            )
        return hidden_states

    def _fused(self) -> NativeDecoder | None:
        found = [
            _native_layer(layer, next_norm)
            for layer, next_norm in zip(self.layers, self._next_norms, strict=True)
        ]
        layers = [layer for layer in found if layer is not None]
        if len(layers) < len(found) or not NativeDecoder.takes(layers, self._shape):
            return None
        return NativeDecoder(layers, self._shape, self._eps)


def _native_layer(layer: LlamaLayer, next_norm: torch.Tensor) -> DecoderLayer | None:
    """None: something in it is not a compiled op."""
    if isinstance(layer.mlp, MixtureOfExperts) or layer.attention.has_head_norms:
        return None
    native = {name: product.native for name, product in layer.products().items()}
    qkv, out = native["qkv_projection"], native["out_projection"]
    gate_up, down = native["gate_up_projection"], native["down_projection"]
    if qkv is None or out is None or gate_up is None or down is None:
        return None
    norms = layer.post_attention_norm, next_norm
    return DecoderLayer(qkv, out, gate_up, down, *norms, layer.window)
