"""The tensors that hold keys and values, cut into blocks, and copies between blocks.

Knows no request: a block belongs to whoever the plan says. Invariant: all layers have the same
blocks, so a block id means the same slots everywhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(slots=True, frozen=True)
class KVCacheSpec:
    """What a model keeps for one position."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype

    def bytes_per_block(self, block_size: int) -> int:
        per_slot = 2 * self.num_layers * self.num_kv_heads * self.head_dim
        return per_slot * block_size * self.dtype.itemsize


class KVCache:
    """`key(l)` and `value(l)` are views [num_blocks, block_size, num_kv_heads, head_dim]."""

    def __init__(
        self, spec: KVCacheSpec, num_blocks: int, block_size: int, num_cpu_blocks: int = 0
    ) -> None:
        if num_blocks < 2:
            raise ValueError(f"it needs 2 blocks at least, and has {num_blocks}")
        self.spec = spec
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_cpu_blocks = num_cpu_blocks
        self._blocks = self._allocate(num_blocks)
        self._cpu_blocks = self._allocate_cpu(num_cpu_blocks)
        self._keys = [self._blocks[layer, 0] for layer in range(spec.num_layers)]
        self._values = [self._blocks[layer, 1] for layer in range(spec.num_layers)]

    def _shape(self, num_blocks: int) -> tuple[int, ...]:
        spec = self.spec
        return (spec.num_layers, 2, num_blocks, self.block_size, spec.num_kv_heads, spec.head_dim)

    def _allocate_cpu(self, num_blocks: int) -> torch.Tensor:
        return self._allocate(num_blocks)

    def _allocate(self, num_blocks: int) -> torch.Tensor:
        spec = self.spec
        shape = self._shape(num_blocks)
        if num_blocks == 0:
            return torch.zeros(shape, dtype=spec.dtype)
        # Zeros, since a masked slot is multiplied by weight 0, which NaN would survive; numpy's,
        # since these take no memory until a block is used, or `cache_population` asks for it.
        zeros = np.zeros(math.prod(shape) * spec.dtype.itemsize, dtype=np.uint8)
        return torch.from_numpy(zeros).view(spec.dtype).view(shape)

    def key(self, layer: int) -> torch.Tensor:
        return self._keys[layer]

    def value(self, layer: int) -> torch.Tensor:
        return self._values[layer]

    def swap_out(self, pairs: list[tuple[int, int]]) -> None:
        """Copies (gpu block, cpu block) pairs out."""
        _copy_blocks(self._blocks, self._cpu_blocks, pairs)

    def swap_in(self, pairs: list[tuple[int, int]]) -> None:
        """Copies (cpu block, gpu block) pairs back."""
        _copy_blocks(self._cpu_blocks, self._blocks, pairs)

    def clear_non_finite(self, block_ids: list[int]) -> None:
        """Where a broken row has left NaN, who gets the block next would be broken too: a masked
        key still takes part, with weight 0."""
        if self.spec.dtype.is_floating_point:
            ids = torch.tensor(block_ids, device=self._blocks.device)
            kept = self._blocks[:, :, ids]
            self._blocks[:, :, ids] = kept.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)

    def copy(self, pairs: list[tuple[int, int]]) -> None:
        """Copies (source, target) blocks; no target may be a source of the same call."""
        _copy_blocks(self._blocks, self._blocks, pairs)


def _copy_blocks(source: torch.Tensor, target: torch.Tensor, pairs: list[tuple[int, int]]) -> None:
    if not pairs:
        return
    check_pairs(pairs, source.shape[2], target.shape[2])
    source_ids = torch.tensor([s for s, _ in pairs])
    target_ids = torch.tensor([t for _, t in pairs])
    target[:, :, target_ids] = source[:, :, source_ids]


def check_pairs(pairs: list[tuple[int, int]], num_sources: int, num_targets: int) -> None:
    for source_id, target_id in pairs:
        if not 0 <= source_id < num_sources:
            raise ValueError(f"there is no block {source_id} to copy from")
        if not 0 <= target_id < num_targets:
            raise ValueError(f"there is no block {target_id} to copy to")
