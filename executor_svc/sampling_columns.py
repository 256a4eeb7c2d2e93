"""The sampling parameters of a batch's rows as tensors, made once while the same rows come back.

Knows parameters, no logits and no tokens. Invariant: says nothing that changes from step to step,
so that it can be kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from kernels.sampling import FilterColumns
from segue.types import SamplingParams

# Below it a temperature only overflows; the most likely token is what it means.
GREEDY_BELOW_TEMPERATURE = 1e-5


@dataclass(slots=True, frozen=True)
class DrawnRows:
    """Rows whose token is drawn; the others take the most likely one."""

    rows: torch.Tensor  # [n] int64
    seeds: torch.Tensor  # [n] int64, all 64 bits
    choices: torch.Tensor  # [n] int64
    filters: FilterColumns


@dataclass(slots=True, frozen=True)
class PenalizedRows:
    rows: torch.Tensor  # [n] int64
    penalties: tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # see kernels.apply_penalties


@dataclass(slots=True, frozen=True)
class BiasedRows:
    """Flat: one entry per biased token of a row."""

    rows: torch.Tensor
    token_ids: torch.Tensor
    values: torch.Tensor


@dataclass(slots=True, frozen=True)
class HeldBack:
    """Tokens that may not end a row before its output index `min_tokens`."""

    row: int
    min_tokens: int
    token_ids: torch.Tensor


@dataclass(slots=True, frozen=True)
class SamplingColumns:
    """None and empty lists are what no row of the batch asks for."""

    drawn: DrawnRows | None
    penalized: PenalizedRows | None
    biased: BiasedRows | None
    held_back: list[HeldBack]
    logprob_rows: list[tuple[int, int]]  # (row, how many alternatives)

    @property
    def keeps_logits(self) -> bool:
        return self.penalized is None and self.biased is None and not self.held_back


def make_sampling_columns(
    params: list[SamplingParams], choices: list[int], vocab_size: int
) -> SamplingColumns:
    return SamplingColumns(
        drawn=_drawn_rows(params, choices),
        penalized=_penalized_rows(params),
        biased=_biased_rows(params, vocab_size),
        held_back=_held_back(params, vocab_size),
        logprob_rows=[
            (row, min(p.num_logprobs, vocab_size))
            for row, p in enumerate(params)
            if p.num_logprobs is not None
        ],
    )


def _drawn_rows(params: list[SamplingParams], choices: list[int]) -> DrawnRows | None:
    rows = [r for r, p in enumerate(params) if p.temperature >= GREEDY_BELOW_TEMPERATURE]
    if not rows:
        return None
    drawn = [params[row] for row in rows]
    # A seed has 64 bits without a sign; torch's int64 holds the same bits.
    seeds = np.array([p.seed & (2**64 - 1) for p in drawn], dtype=np.uint64).view(np.int64)
    return DrawnRows(
        rows=torch.tensor(rows),
        seeds=torch.from_numpy(seeds),
        choices=torch.tensor([choices[row] for row in rows]),
        filters=FilterColumns(
            temperatures=torch.tensor([p.temperature for p in drawn], dtype=torch.float32),
            top_ks=torch.tensor([p.top_k for p in drawn]),
            top_ps=torch.tensor([p.top_p for p in drawn], dtype=torch.float64),
            min_ps=torch.tensor([p.min_p for p in drawn], dtype=torch.float32),
        ),
    )


def _penalized_rows(params: list[SamplingParams]) -> PenalizedRows | None:
    rows = [
        row
        for row, p in enumerate(params)
        if p.presence_penalty or p.frequency_penalty or p.repetition_penalty != 1.0
    ]
    if not rows:
        return None
    penalized = [params[row] for row in rows]
    penalties = (
        [p.presence_penalty for p in penalized],
        [p.frequency_penalty for p in penalized],
        [p.repetition_penalty for p in penalized],
    )
    presence, frequency, repetition = (
        torch.tensor(column, dtype=torch.float32).unsqueeze(1) for column in penalties
    )
    return PenalizedRows(torch.tensor(rows), (presence, frequency, repetition))


def _biased_rows(params: list[SamplingParams], vocab_size: int) -> BiasedRows | None:
    entries = [
        (row, token_id, value)
        for row, p in enumerate(params)
        for token_id, value in p.logit_bias
        if token_id < vocab_size
    ]
    if not entries:
        return None
    rows, token_ids, values = zip(*entries, strict=True)
    return BiasedRows(
        torch.tensor(rows), torch.tensor(token_ids), torch.tensor(values, dtype=torch.float32)
    )


def _held_back(params: list[SamplingParams], vocab_size: int) -> list[HeldBack]:
    held_back: list[HeldBack] = []
    for row, p in enumerate(params):
        token_ids = set(p.stop_token_ids)
        if p.eos_token_id is not None:
            token_ids.add(p.eos_token_id)
        known = sorted(token_id for token_id in token_ids if token_id < vocab_size)
        if p.min_tokens and known:
            held_back.append(HeldBack(row, p.min_tokens, torch.tensor(known)))
    return held_back
