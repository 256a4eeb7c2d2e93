"""Ops on tensors: `reference` says what each one means; this module checks shapes and picks.

On a GPU, Triton's kernels (`triton/`) compute each op; on a CPU our compiled ones (`native/`) where
they are there and take these sizes, else torch. Knows nothing of ours; imports torch alone, and
triton where a GPU's tensor comes. Invariant: who calls these functions does not know which file
computes them.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from kernels import elementwise
from kernels.attention_metadata import AttentionMetadata
from kernels.attention_plan import CpuAttentionPlan, plan_cpu_attention
from kernels.chunk_attention import AttentionShape, choose_tile_tokens
from kernels.cpu_attention import cpu_paged_attention
from kernels.gpu import is_batch_invariant, on_gpu, set_batch_invariant, triton_ops
from kernels.native import (
    DecoderLayer,
    DecoderStep,
    NativeAttentionPlan,
    NativeDecoder,
    native_kernels,
)
from kernels.row_exact_linear import RowExactLinear, RowPadding
from kernels.triton.attention_plan import TritonAttentionPlan, plan_triton_attention

__all__ = [
    "AttentionMetadata",
    "AttentionPlan",
    "AttentionShape",
    "DecoderLayer",
    "DecoderStep",
    "NativeAttentionPlan",
    "NativeDecoder",
    "RowExactLinear",
    "RowPadding",
    "add_rms_norm",
    "is_attention_exact",
    "leave_threads_to_native",
    "paged_attention",
    "plan_attention",
    "reshape_and_cache",
    "rms_norm",
    "rotary_and_cache",
    "rotary_embedding",
    "set_batch_invariant",
    "set_num_threads",
    "silu_and_mul",
]

AttentionPlan = CpuAttentionPlan | NativeAttentionPlan | TritonAttentionPlan


def set_num_threads(num_threads: int) -> None:
    """Of all that computes here."""
    torch.set_num_threads(num_threads)
    native = native_kernels()
    if native is not None:
        native.set_num_threads(num_threads)


def leave_threads_to_native() -> None:
    """For a model whose products are all compiled ones. Between two of them their threads wait for
    the next one and have the cores, so a small op of torch that is spread over several would wait
    for one of these. It gets one."""
    torch.set_num_threads(1)


def plan_attention(metadata: AttentionMetadata, shape: AttentionShape) -> AttentionPlan:
    """What all layers of one step share; made once per step."""
    num_rows = len(metadata.seq_lens)
    assert metadata.cu_seqlens_q.shape == (num_rows + 1,)
    assert metadata.block_tables.shape[0] == num_rows
    assert metadata.block_tables.shape[1] * shape.block_size >= metadata.max_seqlen_k
    if on_gpu(metadata.seq_lens):
        invariant = replace(shape, is_batch_invariant=is_batch_invariant())
        return plan_triton_attention(metadata, invariant)
    native = native_kernels()
    if native is not None and native.takes_heads(shape):
        return NativeAttentionPlan.of(metadata, shape, native)
    return plan_cpu_attention(metadata, shape)


def is_attention_exact(shape: AttentionShape) -> bool:
    """Whether a query's result has the same bits whatever stands beside it."""
    native = native_kernels()
    if native is not None and native.takes_heads(shape):
        return True  # by the way it is written
    return choose_tile_tokens(shape, torch.get_num_threads()).is_exact


def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    plan: AttentionPlan,
) -> torch.Tensor:
    """See reference.paged_attention."""
    shape = plan.shape
    assert query.shape[1:] == (shape.num_heads, shape.head_dim)
    assert key_cache.shape[1:] == (shape.block_size, shape.num_kv_heads, shape.head_dim)
    assert value_cache.shape == key_cache.shape
    assert key_cache.is_contiguous()
    assert value_cache.is_contiguous()
    if isinstance(plan, TritonAttentionPlan):
        ops = triton_ops()
        attend = ops.paged_attention if plan.num_splits == 1 else ops.split_kv_attention
        return attend(query, key_cache, value_cache, plan)
    if isinstance(plan, NativeAttentionPlan):
        return plan.attend(query, key_cache, value_cache)
    return cpu_paged_attention(query, key_cache, value_cache, plan)


def reshape_and_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """See reference.reshape_and_cache."""
    assert key.shape == value.shape
    assert key.shape[1:] == key_cache.shape[2:]
    assert slot_mapping.shape == (key.shape[0],)
    if on_gpu(key):
        triton_ops().reshape_and_cache(key, value, key_cache, value_cache, slot_mapping)
        return
    elementwise.reshape_and_cache(key, value, key_cache, value_cache, slot_mapping)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See reference.rms_norm."""
    assert x.shape[-1:] == weight.shape
    if on_gpu(x):
        return triton_ops().rms_norm(x, weight, eps)
    native = native_kernels()
    if native is not None and native.takes_rows(x, weight):
        return native.rms_norm(x, weight, eps)
    return elementwise.rms_norm(x, weight, eps)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """See reference.add_rms_norm."""
    assert x.shape == residual.shape
    assert x.shape[-1:] == weight.shape
    if on_gpu(x):
        return triton_ops().add_rms_norm(x, residual, weight, eps)
    native = native_kernels()
    if native is not None and x.dtype == weight.dtype and native.takes_rows(residual, weight):
        return native.add_rms_norm(x, residual, weight, eps)
    return elementwise.add_rms_norm(x, residual, weight, eps)


def rotary_embedding(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """See reference.rotary_embedding; cos is [num_tokens, 1, head_dim] here, its halves equal, and
    sin the same with its first half negated."""
    assert cos.shape == (x.shape[0], 1, x.shape[2])
    assert sin.shape == cos.shape
    if on_gpu(x):
        return triton_ops().rotary_embedding(x, cos, sin)
    return elementwise.rotary_embedding(x, cos, sin)


def rotary_and_cache(
    qkv: torch.Tensor,
    rotation: tuple[torch.Tensor, torch.Tensor],
    caches: tuple[torch.Tensor, torch.Tensor],
    slot_mapping: torch.Tensor,
) -> torch.Tensor:
    """`rotary_embedding` of queries and keys, and `reshape_and_cache` of keys and values.

    qkv [num_tokens, num_heads + 2 * num_kv_heads, head_dim]; gives the queries
    [num_tokens, num_heads, head_dim]. rotation: cos and sin as `rotary_embedding` takes them.
    """
    key_cache, value_cache = caches
    num_kv_heads = key_cache.shape[2]
    native = None if on_gpu(qkv) else native_kernels()
    if native is not None and native.takes_rotation(qkv):
        return native.rotary_and_cache(qkv, rotation, caches, slot_mapping)
    rotated = rotary_embedding(qkv[:, :-num_kv_heads], *rotation)
    num_heads = qkv.shape[1] - 2 * num_kv_heads
    key, value = rotated[:, num_heads:], qkv[:, -num_kv_heads:]
    reshape_and_cache(key, value, key_cache, value_cache, slot_mapping)
    return rotated[:, :num_heads]


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """See reference.silu_and_mul."""
    assert x.shape[-1] % 2 == 0
    if on_gpu(x):
        return triton_ops().silu_and_mul(x)
    native = native_kernels()
    if native is not None and native.takes_halves(x):
        return native.silu_and_mul(x)
    return elementwise.silu_and_mul(x)
