"""The compiled kernels as functions of tensors. Knows their C signatures, and when they apply.

Invariant: what goes in is contiguous and of the sizes that the C++ side counts on; each `takes_…`
says so, and a caller for whom it is false uses torch instead.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from kernels.chunk_attention import AttentionShape
from kernels.grouped_weight import GROUP_SIZE, INT8, Q4_1, GroupedWeight
from kernels.native.grouped_records import make_records
from kernels.native.packed_memory import PackedMemory

LANES = 16
K_STEP = 32
DTYPES = (torch.bfloat16, torch.float32)
HEAD_DIMS = tuple(LANES * n for n in (1, 2, 3, 4, 5, 6, 8, 16))
MAX_GROUP_SIZE = 32
# The instructions of the products, the best last.
PORTABLE, AVX512_BF16, AMX = range(3)
GROUP_KINDS = {INT8: 0, Q4_1: 1}  # groups.h

_VOID, _INT, _BOOL, _FLOAT = ctypes.c_void_p, ctypes.c_int, ctypes.c_bool, ctypes.c_float
_SIGNATURES: dict[str, tuple[object, Sequence[object]]] = {
    "segue_set_num_threads": (None, [_INT]),
    "segue_set_linear": (_BOOL, [_INT]),
    "segue_pack_linear": (None, [_VOID, _VOID, _INT, _INT, _INT]),
    "segue_linear": (None, [*[_VOID] * 4, *[_INT] * 3]),
    "segue_pack_linear_float": (None, [*[_VOID] * 2, *[_INT] * 2]),
    "segue_linear_float": (None, [*[_VOID] * 4, *[_INT] * 3]),
    "segue_linear_groups": (None, [_INT, *[_VOID] * 4, *[_INT] * 3]),
    "segue_paged_attention": (_BOOL, [_BOOL, *[_VOID] * 8]),
    "segue_add_rms_norm": (None, [_BOOL, _BOOL, *[_VOID] * 5, _INT, _INT, _FLOAT]),
    "segue_silu_and_mul": (None, [_BOOL, *[_VOID] * 2, *[_INT] * 2]),
    "segue_rotary_and_cache": (None, [_BOOL, *[_VOID] * 7, *[_INT] * 4]),
    "segue_decoder": (None, [_VOID] * 4),
    "segue_argmax": (None, [_BOOL, *[_VOID] * 3, *[_INT] * 2]),
    "segue_draw": (None, [_BOOL, *[_VOID] * 3, *[_INT] * 2]),
}


class NativeKernels:
    """Products and ops wait for each other where two threads call; packing is for one thread."""

    def __init__(self, library: ctypes.CDLL) -> None:
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        self._library = library
        self._memory = PackedMemory()
        self.linear_kind = next(k for k in (AMX, AVX512_BF16, PORTABLE) if self.set_linear(k))

    def set_num_threads(self, num_threads: int) -> None:
        self._library.segue_set_num_threads(num_threads)

    def set_linear(self, kind: int) -> bool:
        """Which instructions the products use; False, and no change, where the CPU lacks them."""
        return bool(self._library.segue_set_linear(kind))

    def pack_linear(self, weight: torch.Tensor) -> torch.Tensor:
        """weight [n, k] bfloat16 -> [ceil(n / 16), k / 2, 16, 2], k rounded up to K_STEP."""
        weight = weight.contiguous()
        n, k = weight.shape
        blocks, padded_k = -(-n // LANES), -(-k // K_STEP) * K_STEP
        packed = self._memory.empty((blocks, padded_k // 2, LANES, 2), torch.bfloat16)
        self._library.segue_pack_linear(weight.data_ptr(), packed.data_ptr(), n, k, padded_k)
        return packed

    def linear(
        self, x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, n: int
    ) -> torch.Tensor:
        """x [num_rows, k], packed for n outputs -> [num_rows, n], all bfloat16."""
        padded_k = packed.shape[1] * 2
        x = _padded(x, padded_k)
        out = torch.empty(x.shape[0], n, dtype=torch.bfloat16)
        bias_at = None if bias is None else bias.data_ptr()
        self._library.segue_linear(
            x.data_ptr(), packed.data_ptr(), bias_at, out.data_ptr(), x.shape[0], n, padded_k
        )
        return out

    def pack_linear_float(self, weight: torch.Tensor) -> torch.Tensor:
        """weight [n, k] float32 -> [ceil(n / 16), k, 16]."""
        weight = weight.contiguous()
        n, k = weight.shape
        packed = self._memory.empty((-(-n // LANES), k, LANES), torch.float32)
        self._library.segue_pack_linear_float(weight.data_ptr(), packed.data_ptr(), n, k)
        return packed

    def linear_float(
        self, x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, n: int
    ) -> torch.Tensor:
        """As `linear`, all float32."""
        x = x.contiguous()
        out = torch.empty(x.shape[0], n)
        self._library.segue_linear_float(
            x.data_ptr(),
            packed.data_ptr(),
            None if bias is None else bias.data_ptr(),
            out.data_ptr(),
            x.shape[0],
            n,
            packed.shape[1],
        )
        return out

    def pack_groups(self, weight: GroupedWeight) -> torch.Tensor:
        return self._memory.copy_of(make_records(weight))

    def linear_groups(
        self,
        kind: int,  # of GROUP_KINDS
        x: torch.Tensor,
        records: torch.Tensor,  # of pack_groups
        bias: torch.Tensor | None,
        n: int,
    ) -> torch.Tensor:
        """As `linear`, to the bits, with the weight that the groups stand for."""
        padded_k = records.shape[1] * GROUP_SIZE
        x = _padded(x, padded_k)
        out = torch.empty(x.shape[0], n, dtype=torch.bfloat16)
        self._library.segue_linear_groups(
            kind,
            x.data_ptr(),
            records.data_ptr(),
            None if bias is None else bias.data_ptr(),
            out.data_ptr(),
            x.shape[0],
            n,
            padded_k,
        )
        return out

    def takes_rows(self, x: torch.Tensor, weight: torch.Tensor) -> bool:
        """Whether norms of these rows are here: of the weight's dtype, or wider."""
        is_known = x.dtype in (weight.dtype, torch.float32) and weight.dtype in DTYPES
        return _is_plain(x) and is_known and fits_rows(x.shape[-1])

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        x = x.contiguous()
        out = torch.empty(x.shape, dtype=weight.dtype)
        self._rms_norm((None, x, weight, None, out), eps)
        return out

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The norm of the sum, and the sum."""
        x, residual = x.contiguous(), residual.contiguous()
        out, added = torch.empty_like(x), torch.empty_like(residual)
        self._rms_norm((x, residual, weight, added, out), eps)
        return out, added

    def _rms_norm(
        self,
        tensors: tuple[
            torch.Tensor | None, torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor
        ],
        eps: float,
    ) -> None:
        _, residual, weight, _, _ = tensors
        self._library.segue_add_rms_norm(
            weight.dtype is torch.bfloat16,
            residual.dtype is torch.bfloat16,
            *(None if one is None else one.data_ptr() for one in tensors),
            residual.numel() // residual.shape[-1],
            residual.shape[-1],
            eps,
        )

    def silu_and_mul(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        num_rows, size = x.shape[0], x.shape[1] // 2
        out = torch.empty(num_rows, size, dtype=x.dtype)
        self._library.segue_silu_and_mul(
            x.dtype is torch.bfloat16, x.data_ptr(), out.data_ptr(), num_rows, size
        )
        return out

    def takes_halves(self, x: torch.Tensor) -> bool:
        """Whether the activation of these rows of gate and up is here."""
        return _is_plain(x) and fits_halves(x.shape[-1])

    def takes_rotation(self, qkv: torch.Tensor) -> bool:
        return _is_plain(qkv) and fits_rotation(qkv.shape[-1])

    def takes_heads(self, shape: AttentionShape) -> bool:
        """Whether attention of heads of this shape is here."""
        return (
            shape.dtype in DTYPES
            and shape.head_dim in HEAD_DIMS
            and shape.group_size <= MAX_GROUP_SIZE
        )

    def rotary_and_cache(
        self,
        qkv: torch.Tensor,  # [num_tokens, num_heads + 2 * num_kv_heads, head_dim]
        rotation: tuple[torch.Tensor, torch.Tensor],  # cos and sin, [num_tokens, 1, head_dim]
        caches: tuple[torch.Tensor, torch.Tensor],
        slot_mapping: torch.Tensor,
    ) -> torch.Tensor:
        """Writes keys and values into their slots; the queries, [num_tokens, num_heads, dim]."""
        qkv = qkv.contiguous()
        num_tokens, num_all, head_dim = qkv.shape
        num_kv_heads = caches[0].shape[2]
        query = torch.empty(num_tokens, num_all - 2 * num_kv_heads, head_dim, dtype=qkv.dtype)
        self._library.segue_rotary_and_cache(
            qkv.dtype is torch.bfloat16,
            qkv.data_ptr(),
            rotation[0].data_ptr(),
            rotation[1].data_ptr(),
            query.data_ptr(),
            caches[0].data_ptr(),
            caches[1].data_ptr(),
            slot_mapping.data_ptr(),
            num_tokens,
            query.shape[1],
            num_kv_heads,
            head_dim,
        )
        return query

    def paged_attention(
        self,
        query: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        batch: tuple[torch.Tensor, torch.Tensor, torch.Tensor],  # of AttentionMetadata, int32
        window: int,
    ) -> torch.Tensor:
        """See reference.paged_attention. batch: cu_seqlens_q, seq_lens, block_tables."""
        query = query.contiguous()
        out = torch.empty_like(query)
        _, block_size, num_kv_heads, head_dim = key_cache.shape
        rows, num_blocks = batch[2].shape
        sizes = (ctypes.c_int32 * 7)(
            rows, num_blocks, query.shape[1], num_kv_heads, head_dim, block_size, window
        )
        is_done = self._library.segue_paged_attention(
            query.dtype is torch.bfloat16,
            query.data_ptr(),
            key_cache.data_ptr(),
            value_cache.data_ptr(),
            out.data_ptr(),
            *(part.data_ptr() for part in batch),
            sizes,
        )
        assert is_done, "takes_heads was asked"
        return out

    def decoder(
        self,
        model: ctypes.Structure,  # these are decoder.py's
        step: ctypes.Structure,
        key_caches: ctypes.Array[ctypes.c_void_p],
        value_caches: ctypes.Array[ctypes.c_void_p],
    ) -> None:
        at = ctypes.byref
        self._library.segue_decoder(at(model), at(step), key_caches, value_caches)

    def takes_logits(self, x: torch.Tensor) -> bool:
        """Whether tokens are chosen from these rows here."""
        return _is_plain(x) and x.is_contiguous() and x.shape[1] > 0

    def argmax(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """See kernels.sampling.argmax."""
        indices = torch.empty(x.shape[0], dtype=torch.int64)
        values = torch.empty(x.shape[0])
        self._library.segue_argmax(
            x.dtype is torch.bfloat16,
            x.data_ptr(),
            indices.data_ptr(),
            values.data_ptr(),
            *x.shape,
        )
        return indices, values

    def draw(self, logits: torch.Tensor, columns: Sequence[torch.Tensor]) -> torch.Tensor:
        """columns: those of draw.cpp's DrawColumns, in its order."""
        num_rows = columns[0].shape[0]
        token_ids = torch.empty(num_rows, dtype=torch.int64)
        assert all(column.is_contiguous() for column in columns)
        self._library.segue_draw(
            logits.dtype is torch.bfloat16,
            logits.data_ptr(),
            (_VOID * len(columns))(*(column.data_ptr() for column in columns)),
            token_ids.data_ptr(),
            num_rows,
            logits.shape[1],
        )
        return token_ids


def fits_rows(size: int) -> bool:
    """Of what norms take."""
    return size % LANES == 0


def fits_halves(size: int) -> bool:
    """Of gate and up side by side."""
    return size % (2 * LANES) == 0


def fits_rotation(head_dim: int) -> bool:
    """Its halves are turned together."""
    return head_dim % (2 * LANES) == 0


def _padded(x: torch.Tensor, padded_k: int) -> torch.Tensor:
    """Contiguous, with zeros up to this width."""
    if x.shape[1] != padded_k:
        x = torch.nn.functional.pad(x, (0, padded_k - x.shape[1]))
    return x.contiguous()


def _is_plain(x: torch.Tensor) -> bool:
    return x.dtype in DTYPES and x.device.type == "cpu"
