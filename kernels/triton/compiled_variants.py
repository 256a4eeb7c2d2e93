"""The variants of each kernel that are compiled ahead of time: shapes of models that people serve.

Knows how the wrappers launch; compiles nothing. Invariant: tiles come from the same functions that
the wrappers ask.
"""

# pyright: standard

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from kernels.chunk_attention import AttentionShape
from kernels.triton.attention_plan import attention_constants, choose_tile, next_power_of_2
from kernels.triton.block_copy import WORDS, copy_blocks_kernel
from kernels.triton.invariant_linear import GROUP_ROWS, invariant_linear_kernel, linear_tiles
from kernels.triton.paged_attention import paged_attention_kernel
from kernels.triton.penalties import BLOCK as PENALTY_BLOCK
from kernels.triton.penalties import apply_penalties_kernel, count_tokens_kernel
from kernels.triton.reshape_and_cache import reshape_and_cache_kernel
from kernels.triton.rms_norm import rms_norm_kernel
from kernels.triton.rotary_embedding import rotary_embedding_kernel
from kernels.triton.sample_tokens import BLOCK as SAMPLE_BLOCK
from kernels.triton.sample_tokens import NUM_WARPS, sample_tokens_kernel
from kernels.triton.silu_and_mul import BLOCK as SILU_BLOCK
from kernels.triton.silu_and_mul import silu_and_mul_kernel
from kernels.triton.split_kv_attention import merge_splits_kernel, split_kv_kernel
from kernels.triton.verify_drafts import verify_drafts_kernel

TRITON_DTYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
BF16 = torch.bfloat16
# What is not of the model's dtype, by the name of its argument.
POINTERS: dict[str, str] = dict.fromkeys(
    ("tables_ptr", "cu_seqlens_q_ptr", "seq_lens_ptr", "target_ids_ptr", "source_ids_ptr"), "*i32"
)
POINTERS |= dict.fromkeys(
    ("counts_ptr", "starts_ptr", "token_ids_ptr", "num_prompt_tokens_ptr", "num_tokens_ptr"), "*i32"
)
POINTERS |= dict.fromkeys(("source_ptr", "target_ptr"), "*i32")
POINTERS |= dict.fromkeys(("slots_ptr", "rows_ptr", "sampled_ptr", "drafts_ptr"), "*i64")
POINTERS |= dict.fromkeys(
    ("tokens_ptr", "is_bad_ptr", "top_ks_ptr", "seeds_ptr", "choices_ptr", "output_indices_ptr"),
    "*i64",
)
POINTERS |= dict.fromkeys(
    ("partial_ptr", "max_ptr", "sum_ptr", "logits_ptr", "temperatures_ptr", "min_ps_ptr"), "*fp32"
)
POINTERS |= dict.fromkeys(("presence_ptr", "frequency_ptr", "repetition_ptr"), "*fp32")
POINTERS |= {"top_ps_ptr": "*fp64", "residual_ptr": "*fp32", "added_ptr": "*fp32"}
# A cache's layer has more elements than 31 bits count.
SCALARS = {"eps": "fp32"} | {
    f"{side}_{unit}_stride": "i64" for side in ("target", "source") for unit in ("layer", "block")
}

# Llama-3, Mistral, Qwen: groups of 4 and 7; Gemma's heads of 256; SmolLM2's group of 3; Phi's 80.
ATTENTION_SHAPES = [
    AttentionShape(32, 8, 128, 16, BF16),
    AttentionShape(32, 8, 128, 16, torch.float16),
    AttentionShape(28, 4, 128, 16, BF16),
    AttentionShape(16, 8, 256, 16, BF16, window=4096, soft_cap=50.0),
    AttentionShape(9, 3, 64, 16, BF16),
    AttentionShape(32, 32, 80, 32, BF16),
    AttentionShape(9, 3, 64, 16, torch.float32),
    AttentionShape(16, 8, 256, 16, torch.float32),
]


@dataclass(slots=True, frozen=True)
class Variant:
    name: str
    kernel: Any
    constants: dict[str, Any]
    num_warps: int
    num_stages: int = 3
    dtype: torch.dtype = BF16

    def type_of(self, argument: str) -> str:
        """In Triton's signatures."""
        if argument.endswith("_ptr"):
            return POINTERS.get(argument, f"*{TRITON_DTYPES[self.dtype]}")
        return SCALARS.get(argument, "i32")


def all_variants() -> list[Variant]:
    return [*_attention(), *_split_kv(), *_elementwise(), *_sampling(), *_products()]


def _shape_name(shape: AttentionShape) -> str:
    extras = "+window+cap" if shape.window else ""
    heads = f"{shape.num_heads}/{shape.num_kv_heads}x{shape.head_dim}"
    return f"{heads} block {shape.block_size} {TRITON_DTYPES[shape.dtype]}{extras}"


def _attention() -> list[Variant]:
    variants: list[Variant] = []
    for shape in ATTENTION_SHAPES:
        for is_decode in (False, True):
            tile = choose_tile(shape, is_decode)
            variants.append(
                Variant(
                    f"paged_attention {'decode' if is_decode else 'mixed'} {_shape_name(shape)}",
                    paged_attention_kernel,
                    attention_constants(shape, tile)
                    | {
                        "BLOCK_M": tile.block_m,
                        "PADDED_GROUP": next_power_of_2(shape.group_size),
                    },
                    tile.num_warps,
                    tile.num_stages,
                    shape.dtype,
                )
            )
    return variants


def _elementwise() -> list[Variant]:
    hidden, kv_size, half = 4096, 1024, 64
    sizes = {"SIZE": hidden, "PADDED_SIZE": next_power_of_2(hidden)}
    cached = {"SIZE": kv_size, "PADDED_SIZE": next_power_of_2(kv_size)}
    rotary = {"HALF": half, "PADDED_HALF": half, "BLOCK_HEADS": 16}
    return [
        Variant("reshape_and_cache", reshape_and_cache_kernel, cached, 4),
        Variant("rms_norm", rms_norm_kernel, sizes | {"HAS_RESIDUAL": False}, 8),
        Variant("add_rms_norm", rms_norm_kernel, sizes | {"HAS_RESIDUAL": True}, 8),
        Variant("rotary_embedding", rotary_embedding_kernel, rotary, 4),
        Variant("silu_and_mul", silu_and_mul_kernel, {"BLOCK_SIZE": SILU_BLOCK}, 4),
    ]


def _split_kv() -> list[Variant]:
    variants: list[Variant] = []
    for shape in ATTENTION_SHAPES:
        tile = choose_tile(shape, is_decode=True)
        name = f"split_kv {_shape_name(shape)}"
        constants = attention_constants(shape, tile) | {"BLOCK_M": tile.block_m}
        launch = (tile.num_warps, tile.num_stages, shape.dtype)
        variants.append(Variant(name, split_kv_kernel, constants, *launch))
    merged = {"HEAD_DIM": 128, "PADDED_DIM": 128, "NUM_SPLITS": 32}
    return [*variants, Variant("merge_splits", merge_splits_kernel, merged, 4)]


def _sampling() -> list[Variant]:
    penalty = {"BLOCK_SIZE": PENALTY_BLOCK}
    return [
        Variant("count_tokens", count_tokens_kernel, penalty, 4),
        Variant("apply_penalties", apply_penalties_kernel, penalty, 4),
        Variant("sample_tokens", sample_tokens_kernel, {"BLOCK_SIZE": SAMPLE_BLOCK}, NUM_WARPS),
        Variant("verify_drafts", verify_drafts_kernel, {"MAX_POSITIONS": 8}, 1),
        Variant("copy_blocks", copy_blocks_kernel, {"WORDS_AT_ONCE": WORDS}, 4),
    ]


def _products() -> list[Variant]:
    variants: list[Variant] = []
    for dtype in (BF16, torch.float32):
        tiles = linear_tiles(dtype)
        num_warps, num_stages = tiles.pop("num_warps"), tiles.pop("num_stages")
        constants = tiles | {"GROUP_M": GROUP_ROWS, "HAS_BIAS": True}
        name = f"invariant_linear {TRITON_DTYPES[dtype]}"
        launch = (num_warps, num_stages, dtype)
        variants.append(Variant(name, invariant_linear_kernel, constants, *launch))
    return variants
