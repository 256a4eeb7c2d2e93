"""All layers of a decoder as one call of the compiled kernels.

Knows the structures of decoder.cpp, and which layers it can compute. Invariant: the bits are those
of the same ops called one by one, which is what happens where `of` gives None.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels.chunk_attention import AttentionShape
from kernels.native.attention_plan import NativeAttentionPlan
from kernels.native.library import DTYPES, fits_halves, fits_rotation, fits_rows
from kernels.native.product import NativeProduct

_INT, _VOID, _FLOAT, _BOOL = ctypes.c_int32, ctypes.c_void_p, ctypes.c_float, ctypes.c_bool


@dataclass(slots=True, frozen=True)
class DecoderLayer:
    """Pre-norm attention and a gated feed-forward part, gate first."""

    qkv: NativeProduct
    out: NativeProduct
    gate_up: NativeProduct
    down: NativeProduct
    post_attention_norm: torch.Tensor  # [hidden_size]
    next_norm: torch.Tensor  # of the next layer's input, or the last of all
    window: int

    @property
    def products(self) -> tuple[NativeProduct, ...]:
        return self.qkv, self.out, self.gate_up, self.down


@dataclass(slots=True, frozen=True)
class DecoderStep:
    """What the layers get of one step."""

    hidden_states: torch.Tensor  # [num_tokens, hidden_size], normed for the first layer; changed
    residual: torch.Tensor  # [num_tokens, hidden_size] float32; changed
    rotation: tuple[torch.Tensor, torch.Tensor]  # cos and sin, [num_tokens, 1, head_dim]
    slot_mapping: torch.Tensor  # [num_tokens] int64
    plan: NativeAttentionPlan  # of any window
    key_caches: Sequence[torch.Tensor]  # of each layer
    value_caches: Sequence[torch.Tensor]


class _Linear(ctypes.Structure):
    _fields_ = (
        *((name, _VOID) for name in ("weight", "bias")),
        *((name, _INT) for name in ("kind", "num_outputs", "num_inputs")),
    )


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, _Linear) for name in ("qkv", "out", "gate_up", "down")),
        *((name, _VOID) for name in ("post_attention_norm", "next_norm")),
        ("window", _INT),
    )


class _Model(ctypes.Structure):
    _fields_ = (
        ("layers", ctypes.POINTER(_Layer)),
        *((name, _INT) for name in ("num_layers", "hidden_size", "num_heads", "num_kv_heads")),
        ("head_dim", _INT),
        ("eps", _FLOAT),
        ("is_bf16", _BOOL),
    )


class _Step(ctypes.Structure):
    _fields_ = (
        *((name, _VOID) for name in ("hidden", "residual", "cos", "sin", "slots")),
        *((name, _VOID) for name in ("cu_seqlens_q", "seq_lens", "block_tables")),
        *((name, _VOID) for name in ("qkv", "query", "attended", "added", "gate_up", "activated")),
        *((name, _INT) for name in ("num_tokens", "num_rows", "max_num_blocks")),
        ("block_size", _INT),
    )


class NativeDecoder:
    """Not for two threads at a time."""

    def __init__(self, layers: Sequence[DecoderLayer], shape: AttentionShape, eps: float) -> None:
        """Of layers and heads for which `takes` is true; the block size is the step's."""
        self._kernels = layers[0].qkv.kernels
        self._layers = list(layers)  # their tensors are what the structures point to
        first = layers[0]
        query_size, inner_size = first.out.in_features, first.down.in_features
        # What lies between two ops, in the order of _Step.
        self._row_sizes = (
            first.qkv.out_features,
            query_size,
            query_size,
            first.out.out_features,
            first.gate_up.out_features,
            inner_size,
        )
        self._structures = (_Layer * len(layers))(*map(_layer, layers))
        self._model = _Model(
            self._structures,
            len(layers),
            layers[0].next_norm.shape[0],
            shape.num_heads,
            shape.num_kv_heads,
            shape.head_dim,
            eps,
            shape.dtype is torch.bfloat16,
        )

    @staticmethod
    def takes(layers: Sequence[DecoderLayer], shape: AttentionShape) -> bool:
        """Whether every op of these layers is here, with nothing to do between two of them."""
        first = layers[0]
        return (
            shape.dtype in DTYPES
            and first.qkv.kernels.takes_heads(shape)
            and fits_rotation(shape.head_dim)
            and fits_rows(first.next_norm.shape[0])
            and fits_halves(first.gate_up.out_features)
            and not any(product.is_padded for layer in layers for product in layer.products)
        )

    def __call__(self, step: DecoderStep) -> torch.Tensor:
        """The hidden states behind the last norm, where they were."""
        cos, sin = step.rotation
        batch = step.plan.batch
        num_tokens = step.hidden_states.shape[0]
        scratch = [step.hidden_states.new_empty(num_tokens, size) for size in self._row_sizes]
        given = (step.hidden_states, step.residual, cos, sin, step.slot_mapping, *batch)
        assert all(tensor.is_contiguous() for tensor in given)
        structure = _Step(
            *(tensor.data_ptr() for tensor in (*given, *scratch)),
            num_tokens,
            *batch[2].shape,
            step.key_caches[0].shape[1],
        )
        self._kernels.decoder(
            self._model, structure, _addresses(step.key_caches), _addresses(step.value_caches)
        )
        return step.hidden_states


def _layer(layer: DecoderLayer) -> _Layer:
    norms = (layer.post_attention_norm.data_ptr(), layer.next_norm.data_ptr())
    return _Layer(*map(_linear, layer.products), *norms, layer.window)


def _linear(product: NativeProduct) -> _Linear:
    bias = None if product.bias is None else product.bias.data_ptr()
    sizes = (product.kind, product.out_features, product.in_features)
    return _Linear(product.packed.data_ptr(), bias, *sizes)


def _addresses(tensors: Sequence[torch.Tensor]) -> ctypes.Array[ctypes.c_void_p]:
    return (_VOID * len(tensors))(*(tensor.data_ptr() for tensor in tensors))
