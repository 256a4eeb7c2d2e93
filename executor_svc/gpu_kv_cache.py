"""A KV cache on a GPU, and its blocks' copies: all layers of all blocks in one launch.

Blocks that are swapped go through a buffer on the device, gathered and scattered by Triton, and
between it and pinned memory on a stream of their own. Knows no request. Invariant: what is swapped
out has left its block before the step writes, and what is swapped in is there before it reads; the
host waits for neither.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from executor_svc.kv_cache import KVCache, KVCacheSpec, check_pairs
from kernels.gpu import triton_ops

Pairs = list[tuple[int, int]]


class GpuKVCache(KVCache):
    """On the CPU side, blocks come first: one block of all layers is one copy."""

    def __init__(
        self,
        spec: KVCacheSpec,
        num_blocks: int,
        block_size: int,
        num_cpu_blocks: int,
        device: torch.device,
    ) -> None:
        self._device = device
        super().__init__(spec, num_blocks, block_size, num_cpu_blocks)
        self._stream: Any = torch.cuda.Stream(device) if self._is_cuda else None

    @property
    def _is_cuda(self) -> bool:
        return self._device.type == "cuda"

    def _allocate(self, num_blocks: int) -> torch.Tensor:
        """Zeros, since NaN would survive the weight 0 of a masked key."""
        return torch.zeros(self._shape(num_blocks), dtype=self.spec.dtype, device=self._device)

    def _allocate_cpu(self, num_blocks: int) -> torch.Tensor:
        layers, pair, _, *rest = self._shape(1)
        size = (num_blocks, layers * pair, *rest)
        return torch.zeros(size, dtype=self.spec.dtype, pin_memory=self._is_cuda and num_blocks > 0)

    def swap_out(self, pairs: Pairs) -> None:
        if not pairs:
            return
        check_pairs(pairs, self.num_blocks, self.num_cpu_blocks)
        staged = self._staging(len(pairs))
        sources, places = self._ids([s for s, _ in pairs]), self._ids(range(len(pairs)))
        triton_ops().copy_blocks(self._blocks.flatten(0, 1), _layers_first(staged), sources, places)
        with self._beside():
            for place, (_, cpu_block) in enumerate(pairs):
                self._cpu_blocks[cpu_block].copy_(staged[place], non_blocking=True)
        self._hold(staged)

    def swap_in(self, pairs: Pairs) -> None:
        if not pairs:
            return
        check_pairs(pairs, self.num_cpu_blocks, self.num_blocks)
        staged = self._staging(len(pairs))
        with self._beside():
            for place, (cpu_block, _) in enumerate(pairs):
                staged[place].copy_(self._cpu_blocks[cpu_block], non_blocking=True)
        self._hold(staged)
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)
        places, targets = self._ids(range(len(pairs))), self._ids([t for _, t in pairs])
        triton_ops().copy_blocks(_layers_first(staged), self._blocks.flatten(0, 1), places, targets)

    def copy(self, pairs: Pairs) -> None:
        if not pairs:
            return
        check_pairs(pairs, self.num_blocks, self.num_blocks)
        blocks = self._blocks.flatten(0, 1)
        sources, targets = self._ids([s for s, _ in pairs]), self._ids([t for _, t in pairs])
        triton_ops().copy_blocks(blocks, blocks, sources, targets)

    def _staging(self, num_blocks: int) -> torch.Tensor:
        layers, pair, _, *rest = self._shape(1)
        size = (num_blocks, layers * pair, *rest)
        return torch.empty(size, dtype=self.spec.dtype, device=self._device)

    def _ids(self, ids: Any) -> torch.Tensor:
        on_host = torch.tensor(list(ids), dtype=torch.int32, pin_memory=self._is_cuda)
        return on_host.to(self._device, non_blocking=True)

    def _beside(self) -> Any:
        """On the stream of swaps, behind what was launched before."""
        if self._stream is None:
            return nullcontext()
        self._stream.wait_stream(torch.cuda.current_stream())
        return torch.cuda.stream(self._stream)

    def _hold(self, staged: torch.Tensor) -> None:
        """Its memory is given to nobody before the stream of swaps is through with it."""
        if self._stream is not None:
            staged.record_stream(self._stream)


def _layers_first(staged: torch.Tensor) -> torch.Tensor:
    return staged.transpose(0, 1)
