"""Products x @ weight.T whose rows do not depend on how many rows are multiplied together.

A CPU library picks another algorithm for another number of rows, and with it another order of
summation: the same row gives other last bits in a batch of 8 than alone. So the products of each
shape are tried once with many row counts, the counts are sorted into classes that sum in the same
order, and only counts of one class are ever used: a batch is padded up to the next one, or cut.
Knows nothing about models. Invariant: which class is used depends on shapes, library, CPU and
number of threads alone, never on time, so that another process on this machine chooses the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F

from kernels.gpu import is_batch_invariant, on_gpu, triton_ops
from kernels.grouped_weight import GroupedWeight
from kernels.native import NativeProduct, native_kernels
from kernels.native.library import DTYPES

Product = Callable[[torch.Tensor], torch.Tensor]

ROW_COUNTS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
# Above this many outputs (a vocabulary), few rows are ever asked for, and trying many is slow.
WIDE_OUT_FEATURES = 16384
WIDE_MAX_ROWS = 128
# To choose between classes: reading a weight costs about as much as computing 32 rows with it.
WEIGHT_COST_ROWS = 32
TYPICAL_ROWS = (1, 8, 32, 128, 512)
# Weights are packed for about this many rows; the packed form serves all counts.
PACKED_FOR_ROWS = 32
PROBE_SEED = 20


@dataclass(slots=True, frozen=True)
class LinearShape:
    out_features: int
    in_features: int
    dtype: torch.dtype
    has_bias: bool = False


@dataclass(slots=True, frozen=True)
class RowCounts:
    """Row counts that may be used, ascending; empty: all. Not exact: no two counts sum alike."""

    counts: tuple[int, ...]
    is_exact: bool


class RowPadding:
    """Buffers that batches are padded in. One for all products that never run at the same time."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[int, int, torch.dtype], torch.Tensor] = {}

    def pad(self, x: torch.Tensor, padded_rows: int) -> torch.Tensor:
        """x with other rows below it; until the next call."""
        key = (padded_rows, x.shape[1], x.dtype)
        buffer = self._buffers.get(key)
        if buffer is None:
            with torch.inference_mode(mode=False):  # it outlives the call that needs it first
                buffer = torch.zeros(padded_rows, x.shape[1], dtype=x.dtype)
            self._buffers[key] = buffer
        buffer[: x.shape[0]] = x
        return buffer


class RowExactLinear:
    """One weight [out_features, in_features], packed where the library can.

    On a CPU our own product is used where it is compiled: it is exact as it is written. On a
    GPU the library's is used, or our own where rows have to be exact. A grouped weight stays in
    its groups where our own product is there, and is a bfloat16 weight elsewhere.
    """

    def __init__(
        self,
        weight: torch.Tensor | GroupedWeight,
        bias: torch.Tensor | None = None,
        padding: RowPadding | None = None,
    ) -> None:
        self.native = native_product(weight, bias)
        if self.native is not None:
            self._product = self.native
            self.in_features = self.native.in_features
            self.dtype = weight.dtype
            self.row_counts = RowCounts((), is_exact=True)
            return
        if isinstance(weight, GroupedWeight):
            weight = weight.dequantized()
        self.in_features, self.dtype = weight.shape[1], weight.dtype
        if on_gpu(weight):
            self._product = gpu_product(weight, bias)
            self.row_counts = RowCounts((), is_exact=is_batch_invariant())
            return
        self._product = packed_product(weight, bias)
        self._padding = padding or RowPadding()
        shape = LinearShape(weight.shape[0], weight.shape[1], weight.dtype, bias is not None)
        self.row_counts = row_counts(shape, torch.get_num_threads())

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [num_tokens, in_features] -> [num_tokens, out_features]."""
        counts = self.row_counts.counts
        if not counts:
            return self._product(x)
        num_rows, max_rows = x.shape[0], counts[-1]
        if num_rows <= max_rows:
            return self._padded_product(x)
        starts = range(0, num_rows, max_rows)
        return torch.cat([self._padded_product(x[start : start + max_rows]) for start in starts])

    def _padded_product(self, x: torch.Tensor) -> torch.Tensor:
        num_rows = x.shape[0]
        padded_rows = next(count for count in self.row_counts.counts if count >= num_rows)
        if padded_rows == num_rows:
            return self._product(x)
        return self._product(self._padding.pad(x, padded_rows))[:num_rows]


def native_product(
    weight: torch.Tensor | GroupedWeight, bias: torch.Tensor | None
) -> NativeProduct | None:
    if isinstance(weight, torch.Tensor) and (on_gpu(weight) or weight.dtype not in DTYPES):
        return None
    native = native_kernels()
    return None if native is None else NativeProduct.of(native, weight, bias)


def gpu_product(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    if is_batch_invariant():
        return lambda x: triton_ops().invariant_linear(x, weight, bias)
    return lambda x: F.linear(x, weight, bias)


def packed_product(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    """oneDNN's packed product where this build and CPU have it, `F.linear` elsewhere."""
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_FOR_ROWS)
    except (AttributeError, RuntimeError):
        return lambda x: F.linear(x, weight, bias)
    multiply = torch.ops.mkldnn._linear_pointwise.default
    return lambda x: multiply(x, packed, bias, "none", [], "")


@lru_cache(maxsize=256)
def row_counts(shape: LinearShape, num_threads: int) -> RowCounts:
    """The class of row counts that costs least. `num_threads` is part of the cache's key."""
    max_rows = WIDE_MAX_ROWS if shape.out_features > WIDE_OUT_FEATURES else ROW_COUNTS[-1]
    x, weight = _probe(shape, max_rows)
    bias = torch.zeros(shape.out_features, dtype=shape.dtype) if shape.has_bias else None
    candidates = [count for count in ROW_COUNTS if count <= max_rows]
    classes = row_classes(packed_product(weight, bias), x, candidates)
    if not classes:
        return RowCounts((max_rows,), is_exact=False)
    return RowCounts(min(classes, key=_cost), is_exact=True)


def row_classes(product: Product, x: torch.Tensor, candidates: list[int]) -> list[tuple[int, ...]]:
    """Row counts that give a row the same bits, wherever in the batch it stands."""
    classes: list[tuple[list[int], torch.Tensor]] = []
    for count in candidates:
        result = product(x[:count])
        if not torch.equal(product(x[:count].flip(0)).flip(0), result):
            continue
        for members, first_result in classes:
            shared = first_result.shape[0]  # candidates ascend
            if torch.equal(result[:shared], first_result):
                members.append(count)
                break
        else:
            classes.append(([count], result))
    return [tuple(members) for members, _ in classes]


def _cost(counts: tuple[int, ...]) -> int:
    """Of the typical numbers of rows, in rows computed."""
    cost = 0
    for num_rows in TYPICAL_ROWS:
        full, rest = divmod(num_rows, counts[-1])
        tiles = [counts[-1]] * full
        if rest:
            tiles.append(next(count for count in counts if count >= rest))
        cost += sum(WEIGHT_COST_ROWS + tile for tile in tiles)
    return cost


def _probe(shape: LinearShape, num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """x and weight whose exact product is 0: what comes out is rounding alone, the fingerprint of
    the order of summation, and visible in bfloat16 too."""
    generator = torch.Generator().manual_seed(PROBE_SEED)
    half = shape.in_features // 2
    order = torch.randperm(shape.in_features, generator=generator)

    def mirrored(rows: int, sign: float) -> torch.Tensor:
        values = _wide_random((rows, half), generator).to(shape.dtype)
        rest = torch.zeros(rows, shape.in_features - 2 * half, dtype=shape.dtype)
        return torch.cat([values, sign * values, rest], dim=1)[:, order]

    x = mirrored(num_rows, -1.0)
    weight = mirrored(min(shape.out_features, 64), 1.0)
    repeats = -(-shape.out_features // weight.shape[0])
    return x, weight.repeat(repeats, 1)[: shape.out_features].contiguous()


def _wide_random(size: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Of many magnitudes, so that adding two numbers nearly always rounds."""
    exponents = torch.randint(-10, 11, size, generator=generator)
    return torch.randn(size, generator=generator) * 2.0**exponents
