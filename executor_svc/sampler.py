"""Draws the next token of each row that samples.

Knows no cache and no plan. Invariant: a row's token depends on its own logits, parameters, tokens
and output index only, never on the rows beside it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from kernels.reference import philox_uniform
from segue.types import SamplingParams, TokenLogprobs

Int32Array = npt.NDArray[np.int32]


@dataclass(slots=True, frozen=True)
class SamplingBatch:
    """The rows that sample, as parallel columns. `token_ids` is the whole table, not to be changed."""

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


def sample(logits: torch.Tensor, batch: SamplingBatch) -> SamplerOutput:
    """One token for each row of logits [num_samples, vocab_size]."""
    token_ids = logits.argmax(dim=-1)
    best = logits.gather(1, token_ids.unsqueeze(1)).squeeze(1)
    errors = {int(row): "the logits are not numbers" for row in torch.nonzero(best.isnan())}
    drawn = [row for row, params in enumerate(batch.params) if params.temperature > 0]
    if drawn:
        token_ids[drawn] = _draw(logits[drawn], batch, drawn)
    return SamplerOutput(token_ids.numpy().astype(np.int32), errors=errors)


def _draw(logits: torch.Tensor, batch: SamplingBatch, rows: list[int]) -> torch.Tensor:
    temperatures = torch.tensor([batch.params[r].temperature for r in rows])
    # Seeds use all 64 bits; torch's int64 holds the same bits.
    seeds = np.array([batch.params[r].seed for r in rows], dtype=np.uint64).view(np.int64)
    uniforms = philox_uniform(
        torch.from_numpy(seeds),
        torch.tensor([batch.choices[r] for r in rows]),
        torch.from_numpy(batch.output_indices[rows].astype(np.int64)),
    )
    probabilities = torch.softmax(logits.double() / temperatures.unsqueeze(1), dim=-1)
    cumulative = torch.cumsum(probabilities, dim=-1)
    return (cumulative <= uniforms.unsqueeze(1) * cumulative[:, -1:]).sum(dim=-1)
