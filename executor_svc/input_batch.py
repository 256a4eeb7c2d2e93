"""The flat mixed batch of one step, made from the table's columns without a loop over tokens.

Knows nothing about the model. Invariant: token t of the batch is at position positions[t] of its
request, and slot_mapping[t] lies in that request's own block table.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from executor_svc.request_table import PlanError, RequestTable
from kernels.attention_metadata import AttentionMetadata
from segue.types import SchedulerOutput

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]


@dataclass(slots=True, frozen=True)
class InputBatch:
    """Rows in the plan's order; `sampled` is an index into them."""

    table_rows: Int32Array  # [num_rows] row of the request table
    num_scheduled: Int32Array  # [num_rows]
    input_ids: torch.Tensor  # [num_tokens] int64
    positions: torch.Tensor  # [num_tokens] int64
    metadata: AttentionMetadata
    sampled: Int32Array  # [num_samples] rows that sample
    logits_indices: torch.Tensor  # [num_samples] int64, their last tokens
    output_indices: Int32Array  # [num_samples] index of the token they sample


def make_input_batch(plan: SchedulerOutput, table: RequestTable, block_size: int) -> InputBatch:
    """Of the plan's scheduled requests, after the table has taken the plan in."""
    table_rows, num_scheduled = _scheduled_rows(plan, table)
    num_computed = table.num_computed_tokens[table_rows]
    seq_lens = num_computed + num_scheduled
    _check_rows(table, table_rows, seq_lens, block_size)

    cu_seqlens_q = np.zeros(len(table_rows) + 1, dtype=np.int32)
    np.cumsum(num_scheduled, out=cu_seqlens_q[1:])
    row_of_token = np.repeat(np.arange(len(table_rows)), num_scheduled)
    offsets = np.arange(cu_seqlens_q[-1]) - cu_seqlens_q[:-1][row_of_token]
    positions: Int64Array = num_computed[row_of_token].astype(np.int64) + offsets
    table_row_of_token = table_rows[row_of_token]
    input_ids = table.token_ids[table_row_of_token, positions]
    block_ids = table.block_tables[table_row_of_token, positions // block_size]
    slot_mapping: Int64Array = block_ids.astype(np.int64) * block_size + positions % block_size

    max_seqlen_k = int(seq_lens.max())
    max_num_blocks = -(-max_seqlen_k // block_size)
    sampled, output_indices = _sampled_rows(plan, table, table_rows, seq_lens)
    return InputBatch(
        table_rows=table_rows,
        num_scheduled=num_scheduled,
        input_ids=torch.from_numpy(input_ids.astype(np.int64)),
        positions=torch.from_numpy(positions),
        metadata=AttentionMetadata(
            cu_seqlens_q=torch.from_numpy(cu_seqlens_q),
            seq_lens=torch.from_numpy(seq_lens),
            block_tables=torch.from_numpy(table.block_tables[table_rows, :max_num_blocks]),
            slot_mapping=torch.from_numpy(slot_mapping),
            max_seqlen_q=int(num_scheduled.max()),
            max_seqlen_k=max_seqlen_k,
        ),
        sampled=sampled,
        logits_indices=torch.from_numpy(cu_seqlens_q[1:][sampled].astype(np.int64) - 1),
        output_indices=output_indices,
    )


def _scheduled_rows(plan: SchedulerOutput, table: RequestTable) -> tuple[Int32Array, Int32Array]:
    request_ids = list(plan.num_scheduled_tokens)
    for request_id in request_ids:
        if request_id not in table.row_of:
            raise PlanError(f"request {request_id} is scheduled, but not held here")
    num_scheduled = np.fromiter(plan.num_scheduled_tokens.values(), np.int32, len(request_ids))
    if num_scheduled.min() < 1:
        raise PlanError(f"request {request_ids[num_scheduled.argmin()]} has nothing to compute")
    rows = np.fromiter((table.row_of[r] for r in request_ids), np.int32, len(request_ids))
    return rows, num_scheduled


def _check_rows(
    table: RequestTable, table_rows: Int32Array, seq_lens: Int32Array, block_size: int
) -> None:
    beyond_tokens = np.flatnonzero(seq_lens > table.num_tokens[table_rows])
    if len(beyond_tokens):
        row = int(table_rows[beyond_tokens[0]])
        raise PlanError(
            f"request {table.info(row).request_id} is scheduled up to position "
            f"{seq_lens[beyond_tokens[0]]}, and has {table.num_tokens[row]} tokens"
        )
    beyond_blocks = np.flatnonzero(seq_lens > table.num_blocks_of[table_rows] * block_size)
    if len(beyond_blocks):
        row = int(table_rows[beyond_blocks[0]])
        raise PlanError(
            f"request {table.info(row).request_id} is scheduled up to position "
            f"{seq_lens[beyond_blocks[0]]}, and has {table.num_blocks_of[row]} blocks of "
            f"{block_size}"
        )


def _sampled_rows(
    plan: SchedulerOutput, table: RequestTable, table_rows: Int32Array, seq_lens: Int32Array
) -> tuple[Int32Array, Int32Array]:
    """A sampled token stands right behind what is computed: the plan's index has to say so too."""
    unknown = plan.output_indices.keys() - plan.num_scheduled_tokens.keys()
    if unknown:
        raise PlanError(f"request {min(unknown)} samples without being scheduled")
    samples = [
        (row, plan.output_indices[request_id])
        for row, request_id in enumerate(plan.num_scheduled_tokens)
        if request_id in plan.output_indices
    ]
    sampled = np.array([row for row, _ in samples], dtype=np.int32)
    output_indices = np.array([index for _, index in samples], dtype=np.int32)
    rows = table_rows[sampled]
    wrong = np.flatnonzero(
        (table.num_prompt_tokens[rows] + output_indices != seq_lens[sampled])
        | (table.num_tokens[rows] != seq_lens[sampled])
    )
    if len(wrong):
        row = int(rows[wrong[0]])
        raise PlanError(
            f"request {table.info(row).request_id} samples output {output_indices[wrong[0]]} "
            f"behind position {seq_lens[sampled][wrong[0]]}: it has "
            f"{table.num_prompt_tokens[row]} prompt tokens and {table.num_tokens[row]} in all"
        )
    return sampled, output_indices
