"""The flat mixed batch of one step, made from the table's columns without a loop over tokens.

Knows nothing about the model. Invariant: token t of the batch is at position positions[t] of its
request, and slot_mapping[t] lies in that request's own block table.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from executor_svc.drafts import UNKNOWN, Drafts
from executor_svc.request_table import PlanError, RequestTable
from kernels.attention_metadata import AttentionMetadata
from segue.types import SchedulerOutput

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]


@dataclass(slots=True, frozen=True)
class Samples:
    """A request that samples has one sample, and one more behind each draft; side by side."""

    rows: Int32Array  # [num_sampling_requests] rows of the batch
    row_of_sample: Int32Array  # [num_samples] rows of the batch
    token_offsets: Int64Array  # [num_samples] where in the batch the token before it is
    output_indices: Int32Array  # [num_samples] index of the token that is sampled
    num_tokens: Int32Array  # [num_samples] tokens before it
    draft_behind: Int32Array  # [num_samples] the draft computed behind it; -1: none
    num_planned_drafts: Int32Array  # [num_sampling_requests]


@dataclass(slots=True, frozen=True)
class FlatTokens:
    """The tokens of all rows, one row behind the other."""

    input_ids: torch.Tensor  # [num_tokens] int64
    positions: torch.Tensor  # [num_tokens] int64
    metadata: AttentionMetadata


@dataclass(slots=True, frozen=True)
class InputBatch:
    """Rows in the plan's order."""

    table_rows: Int32Array  # [num_rows] row of the request table
    num_scheduled: Int32Array  # [num_rows] known tokens to compute, drafts aside
    tokens: FlatTokens
    samples: Samples


def make_input_batch(
    plan: SchedulerOutput, table: RequestTable, block_size: int, drafts: Drafts
) -> InputBatch:
    """Of the plan's scheduled requests, after the table has taken the plan in."""
    table_rows, num_scheduled, num_drafts = _scheduled_rows(plan, table, drafts)
    for request_id, token_ids in drafts.items():
        if token_ids:
            table.write_drafts(table.row_of[request_id], token_ids)
    num_computed = table.num_computed_tokens[table_rows]
    known_ends = num_computed + num_scheduled
    _check_rows(table, table_rows, known_ends, known_ends + num_drafts, block_size)
    tokens = flat_tokens(table, table_rows, num_computed, num_scheduled + num_drafts, block_size)
    return InputBatch(
        table_rows=table_rows,
        num_scheduled=num_scheduled,
        tokens=tokens,
        samples=_samples(plan, table, table_rows, known_ends, drafts, tokens),
    )


def flat_tokens(
    table: RequestTable,
    table_rows: Int32Array,
    starts: Int32Array,  # [num_rows] first position of each row
    counts: Int32Array,  # [num_rows] how many positions
    block_size: int,
) -> FlatTokens:
    cu_seqlens_q = np.zeros(len(table_rows) + 1, dtype=np.int32)
    np.cumsum(counts, out=cu_seqlens_q[1:])
    row_of_token = np.repeat(np.arange(len(table_rows)), counts)
    offsets = np.arange(cu_seqlens_q[-1]) - cu_seqlens_q[:-1][row_of_token]
    positions: Int64Array = starts[row_of_token].astype(np.int64) + offsets
    table_row_of_token = table_rows[row_of_token]
    input_ids = table.token_ids[table_row_of_token, positions]
    block_ids = table.block_tables[table_row_of_token, positions // block_size]
    slot_mapping: Int64Array = block_ids.astype(np.int64) * block_size + positions % block_size

    seq_lens = starts + counts
    max_seqlen_k = int(seq_lens.max())
    max_num_blocks = -(-max_seqlen_k // block_size)
    return FlatTokens(
        input_ids=torch.from_numpy(input_ids.astype(np.int64)),
        positions=torch.from_numpy(positions),
        metadata=AttentionMetadata(
            cu_seqlens_q=torch.from_numpy(cu_seqlens_q),
            seq_lens=torch.from_numpy(seq_lens),
            block_tables=torch.from_numpy(table.block_tables[table_rows, :max_num_blocks]),
            slot_mapping=torch.from_numpy(slot_mapping),
            max_seqlen_q=int(counts.max()),
            max_seqlen_k=max_seqlen_k,
        ),
    )


def _scheduled_rows(
    plan: SchedulerOutput, table: RequestTable, drafts: Drafts
) -> tuple[Int32Array, Int32Array, Int32Array]:
    """Rows of the table, the known tokens scheduled of each, and the drafts behind them."""
    request_ids = list(plan.num_scheduled_tokens)
    for request_id in request_ids:
        if request_id not in table.row_of:
            raise PlanError(f"request {request_id} is scheduled, but not held here")
    num_scheduled = np.fromiter(plan.num_scheduled_tokens.values(), np.int32, len(request_ids))
    num_drafts = np.zeros_like(num_scheduled)
    if plan.draft_token_ids:
        for index, request_id in enumerate(request_ids):
            num_scheduled[index] -= len(plan.draft_token_ids.get(request_id, ()))
            num_drafts[index] = len(drafts.get(request_id, ()))
    if num_scheduled.min() < 1:
        raise PlanError(f"request {request_ids[num_scheduled.argmin()]} has nothing to compute")
    rows = np.fromiter((table.row_of[r] for r in request_ids), np.int32, len(request_ids))
    return rows, num_scheduled, num_drafts


def _check_rows(
    table: RequestTable,
    table_rows: Int32Array,
    known_ends: Int32Array,
    seq_lens: Int32Array,  # with drafts
    block_size: int,
) -> None:
    beyond_tokens = np.flatnonzero(known_ends > table.num_tokens[table_rows])
    if len(beyond_tokens):
        row = int(table_rows[beyond_tokens[0]])
        raise PlanError(
            f"request {table.info(row).request_id} is scheduled up to position "
            f"{known_ends[beyond_tokens[0]]}, and has {table.num_tokens[row]} tokens"
        )
    beyond_blocks = np.flatnonzero(seq_lens > table.num_blocks_of[table_rows] * block_size)
    if len(beyond_blocks):
        row = int(table_rows[beyond_blocks[0]])
        raise PlanError(
            f"request {table.info(row).request_id} is scheduled up to position "
            f"{seq_lens[beyond_blocks[0]]}, and has {table.num_blocks_of[row]} blocks of "
            f"{block_size}"
        )


def _samples(
    plan: SchedulerOutput,
    table: RequestTable,
    table_rows: Int32Array,
    known_ends: Int32Array,
    drafts: Drafts,
    tokens: FlatTokens,
) -> Samples:
    rows = _sampling_rows(plan, table, table_rows, known_ends)
    request_ids = [table.info(int(row)).request_id for row in table_rows[rows]]
    counts = np.ones(len(rows), dtype=np.int32)
    num_planned = np.zeros(len(rows), dtype=np.int32)
    if plan.draft_token_ids:
        counts += np.array([len(drafts.get(r, ())) for r in request_ids], dtype=np.int32)
        num_planned[:] = [len(plan.draft_token_ids.get(r, ())) for r in request_ids]
    first = np.cumsum(counts) - counts
    offsets = np.arange(counts.sum(), dtype=np.int32) - np.repeat(first, counts).astype(np.int32)
    draft_behind = np.full(len(offsets), UNKNOWN, dtype=np.int32)
    for index in np.flatnonzero(counts > 1):
        start = first[index]
        draft_behind[start : start + counts[index] - 1] = drafts[request_ids[index]]
    row_of_sample = np.repeat(rows, counts)
    num_tokens = known_ends[row_of_sample] + offsets
    # A row's samples stand behind its last tokens.
    ends = tokens.metadata.cu_seqlens_q.numpy()[1:][row_of_sample].astype(np.int64)
    return Samples(
        rows=rows,
        row_of_sample=row_of_sample,
        token_offsets=ends - np.repeat(counts, counts) + offsets,
        output_indices=num_tokens - table.num_prompt_tokens[table_rows[row_of_sample]],
        num_tokens=num_tokens,
        draft_behind=draft_behind,
        num_planned_drafts=num_planned,
    )


def _sampling_rows(
    plan: SchedulerOutput, table: RequestTable, table_rows: Int32Array, known_ends: Int32Array
) -> Int32Array:
    """A sampled token stands right behind what is known: the plan's index has to say so too.

    A plan made before rejected drafts were known counts them in both.
    """
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
    rows, ends = table_rows[sampled], known_ends[sampled]
    output_indices -= table.num_overcounted[rows]
    wrong = np.flatnonzero(
        (table.num_prompt_tokens[rows] + output_indices != ends) | (table.num_tokens[rows] != ends)
    )
    if len(wrong):
        row = int(rows[wrong[0]])
        raise PlanError(
            f"request {table.info(row).request_id} samples output {output_indices[wrong[0]]} "
            f"behind position {ends[wrong[0]]}: it has "
            f"{table.num_prompt_tokens[row]} prompt tokens and {table.num_tokens[row]} in all"
        )
    return sampled
