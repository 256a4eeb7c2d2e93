"""A paged cache of noise in a sea of NaN, with rows in scattered blocks; for attention kernels.

Knows shapes, no kernel. Invariant: every slot that no row's context covers is NaN.
"""

from __future__ import annotations

import torch

from kernels import AttentionMetadata, AttentionShape, reference
from tests.kernels.triton_device import DEVICE, noise, poisoned

Row = tuple[int, int]  # queries, context


class PagedCache:
    def __init__(self, shape: AttentionShape, rows: list[Row], num_padding_rows: int = 0) -> None:
        self.shape = shape
        lengths = [-(-context // shape.block_size) for _, context in rows]
        num_blocks = sum(lengths) + 3
        size = (num_blocks, shape.block_size, shape.num_kv_heads, shape.head_dim)
        self.keys, self.values = (
            poisoned(*size, dtype=shape.dtype),
            poisoned(*size, dtype=shape.dtype),
        )
        generator = torch.Generator().manual_seed(7)
        free = torch.randperm(num_blocks, generator=generator).tolist()
        tables = torch.zeros(len(rows) + num_padding_rows, max(lengths) + 1, dtype=torch.int32)
        for row, (_, context) in enumerate(rows):
            own, free = free[: lengths[row]], free[lengths[row] :]
            tables[row, : len(own)] = torch.tensor(own, dtype=torch.int32)
            for position in range(context):
                block, offset = own[position // shape.block_size], position % shape.block_size
                head = (shape.num_kv_heads, shape.head_dim)
                self.keys[block, offset] = noise(*head, seed=position, dtype=shape.dtype)
                self.values[block, offset] = noise(*head, seed=-1 - position, dtype=shape.dtype)
        queries = [num_queries for num_queries, _ in rows] + [0] * num_padding_rows
        contexts = [context for _, context in rows] + [0] * num_padding_rows
        starts = torch.tensor([0, *queries]).cumsum(0)
        self.metadata = AttentionMetadata(
            cu_seqlens_q=starts.int().to(DEVICE),
            seq_lens=torch.tensor(contexts, dtype=torch.int32, device=DEVICE),
            block_tables=tables.to(DEVICE),
            slot_mapping=torch.zeros(int(starts[-1]), dtype=torch.int64, device=DEVICE),
            max_seqlen_q=max(queries),
            max_seqlen_k=max(contexts),
        )
        num_tokens = int(starts[-1])
        # Views of a wider tensor, as queries are of a fused product.
        self.query = noise(num_tokens, shape.num_heads + 2, shape.head_dim, dtype=shape.dtype)[
            :, 1:-1
        ]

    def expected(self) -> torch.Tensor:
        """What the specification says, on the CPU in float32 and rounded once."""
        metadata = self.metadata
        on_cpu = AttentionMetadata(
            *(
                part.cpu()
                for part in (
                    metadata.cu_seqlens_q,
                    metadata.seq_lens,
                    metadata.block_tables,
                    metadata.slot_mapping,
                )
            ),
            max_seqlen_q=metadata.max_seqlen_q,
            max_seqlen_k=metadata.max_seqlen_k,
        )
        shape = self.shape
        return reference.paged_attention(
            self.query.cpu(),
            self.keys.cpu(),
            self.values.cpu(),
            on_cpu,
            shape.window,
            shape.soft_cap,
        )
