"""All wrappers by one name each, for who loads them late.

Knows nothing more. Invariant: one name, one op.
"""

from kernels.triton.block_copy import copy_blocks
from kernels.triton.invariant_linear import invariant_linear
from kernels.triton.paged_attention import paged_attention
from kernels.triton.penalties import PenaltyColumns, apply_penalties
from kernels.triton.reshape_and_cache import reshape_and_cache
from kernels.triton.rms_norm import add_rms_norm, rms_norm
from kernels.triton.rotary_embedding import rotary_embedding
from kernels.triton.sample_tokens import DrawColumns, sample_tokens
from kernels.triton.silu_and_mul import silu_and_mul
from kernels.triton.split_kv_attention import split_kv_attention
from kernels.triton.verify_drafts import verify_drafts

__all__ = [
    "DrawColumns",
    "PenaltyColumns",
    "add_rms_norm",
    "apply_penalties",
    "copy_blocks",
    "invariant_linear",
    "paged_attention",
    "reshape_and_cache",
    "rms_norm",
    "rotary_embedding",
    "sample_tokens",
    "silu_and_mul",
    "split_kv_attention",
    "verify_drafts",
]
