"""Draws the next token of each row that samples.

Knows no cache and no plan. Invariant: a row's token depends on its own logits, parameters, tokens
and output index only, never on the rows beside it: a step that is run again, in another batch or
after preemption, draws the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from executor_svc.sampling_columns import (
    BiasedRows,
    DrawnRows,
    HeldBack,
    PenalizedRows,
    SamplingColumns,
    make_sampling_columns,
)
from kernels.sampling import Noise, apply_penalties, argmax, draw_tokens, log_normalizers
from segue.types import SamplingParams, TokenLogprobs

Int32Array = npt.NDArray[np.int32]


@dataclass(slots=True, frozen=True)
class SamplingBatch:
    """The rows that sample, as parallel columns. `token_ids` is the whole table: only to read."""

    params: list[SamplingParams]
    choices: list[int]
    output_indices: Int32Array  # [num_samples]
    token_ids: Int32Array  # [num_table_rows, width]
    table_rows: Int32Array  # [num_samples] rows of token_ids
    num_prompt_tokens: Int32Array  # [num_samples]
    num_tokens: Int32Array  # [num_samples] prompt and output so far


@dataclass(slots=True, frozen=True)
class SamplerOutput:
    """`errors` and `logprobs` by row; a row with an error has drawn nothing that counts."""

    token_ids: Int32Array  # [num_samples]
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)


class Sampler:
    """Keeps the parameters of the last batch as tensors: most steps have the same rows again."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._last_params: list[SamplingParams] = []
        self._last_choices: list[int] = []
        self._columns = make_sampling_columns([], [], vocab_size)

    def sample(self, logits: torch.Tensor, batch: SamplingBatch) -> SamplerOutput:
        """One token for each row of logits [num_samples, vocab_size], which may be changed."""
        columns = self._columns_of(batch)
        raw_rows = {row: logits[row].float().clone() for row, _ in columns.logprob_rows}
        token_ids, best = argmax(logits)
        is_bad = ~best.isfinite()
        if not columns.keeps_logits:
            logits = logits.float()
            _adjust(logits, columns, batch)
            token_ids, _ = argmax(logits)
        if columns.drawn is not None:
            token_ids[columns.drawn.rows] = _draw(logits, columns.drawn, batch.output_indices)
        errors: dict[int, str] = {}
        if is_bad.any():
            errors = dict.fromkeys(
                torch.nonzero(is_bad).squeeze(1).tolist(), "the model's logits are not numbers"
            )
        sampled = token_ids.clamp_(0, self._vocab_size - 1).numpy().astype(np.int32)
        return SamplerOutput(
            sampled, make_logprobs(raw_rows, sampled, columns.logprob_rows), errors
        )

    def _columns_of(self, batch: SamplingBatch) -> SamplingColumns:
        if batch.params != self._last_params or batch.choices != self._last_choices:
            self._columns = make_sampling_columns(batch.params, batch.choices, self._vocab_size)
            self._last_params, self._last_choices = batch.params, batch.choices
        return self._columns


def _adjust(logits: torch.Tensor, columns: SamplingColumns, batch: SamplingBatch) -> None:
    """In vLLM's order: held-back ends, bias, penalties."""
    for held_back in columns.held_back:
        _hold_back(logits, held_back, int(batch.output_indices[held_back.row]))
    if columns.biased is not None:
        _add_bias(logits, columns.biased)
    if columns.penalized is not None:
        _penalize(logits, columns.penalized, batch)


def _hold_back(logits: torch.Tensor, held_back: HeldBack, output_index: int) -> None:
    if output_index < held_back.min_tokens:
        logits[held_back.row, held_back.token_ids] = -math.inf


def _add_bias(logits: torch.Tensor, biased: BiasedRows) -> None:
    logits[biased.rows, biased.token_ids] += biased.values


def _penalize(logits: torch.Tensor, penalized: PenalizedRows, batch: SamplingBatch) -> None:
    rows = penalized.rows.numpy()
    num_tokens = batch.num_tokens[rows]
    width = int(num_tokens.max())
    columns = np.arange(width)
    token_ids = torch.from_numpy(batch.token_ids[batch.table_rows[rows], :width].astype(np.int64))
    is_token = columns < num_tokens[:, None]
    is_output = is_token & (columns >= batch.num_prompt_tokens[rows][:, None])
    size = (len(rows), logits.shape[1])
    seen = torch.zeros(size).scatter_add_(1, token_ids, torch.from_numpy(is_token).float())
    counts = torch.zeros(size).scatter_add_(1, token_ids, torch.from_numpy(is_output).float())
    adjusted = logits[penalized.rows]
    apply_penalties(adjusted, seen > 0, counts, penalized.penalties)
    logits[penalized.rows] = adjusted


def _draw(logits: torch.Tensor, drawn: DrawnRows, output_indices: Int32Array) -> torch.Tensor:
    indices = torch.from_numpy(output_indices.astype(np.int64))[drawn.rows]
    noise = Noise(drawn.seeds, drawn.choices, indices)
    return draw_tokens(logits, drawn.rows, drawn.filters, noise)


def make_logprobs(
    raw_rows: dict[int, torch.Tensor], sampled: Int32Array, wanted: list[tuple[int, int]]
) -> dict[int, TokenLogprobs]:
    """Of the model's own distribution, before any parameter has changed it."""
    if not wanted:
        return {}
    raw = torch.stack([raw_rows[row] for row, _ in wanted])
    normalizers = log_normalizers(raw)
    own = raw.gather(1, torch.tensor([[int(sampled[row])] for row, _ in wanted])).squeeze(1)
    own_logprobs = (own.double() - normalizers).tolist()
    logprobs: dict[int, TokenLogprobs] = {}
    for index, (row, count) in enumerate(wanted):
        best = _best(raw[index], count)
        values = (raw[index][best].double() - normalizers[index]).tolist()
        logprobs[row] = TokenLogprobs(own_logprobs[index], tuple(best), tuple(values))
    return logprobs


def _best(logits: torch.Tensor, count: int) -> list[int]:
    """Best first, equal ones in the order of their ids, whatever order topk finds them in."""
    if count == 0:
        return []
    last = torch.topk(logits, count).values[-1]
    candidates = torch.nonzero(logits >= last).squeeze(1)
    order = logits[candidates].sort(descending=True, stable=True).indices
    return candidates[order][:count].tolist()
