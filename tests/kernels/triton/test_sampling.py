"""The sampling kernels against the reference: the same tokens from the same noise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from kernels import reference
from kernels.triton.penalties import PenaltyColumns, apply_penalties
from kernels.triton.sample_tokens import DrawColumns, sample_tokens
from tests.kernels.triton_device import DEVICE, noise

# (temperature, top_k, top_p, min_p)
FILTERS = [
    (1.0, 0, 1.0, 0.0),
    (0.7, 5, 1.0, 0.0),
    (1.3, 0, 0.9, 0.0),
    (1.0, 0, 1.0, 0.1),
    (0.9, 50, 0.8, 0.02),
    (2.0, 1, 0.5, 0.0),
    (1.0, 0, 1e-6, 0.0),
    (5.0, 100_000, 0.999, 0.0),
    (0.0, 3, 0.5, 0.0),
]
VOCAB_SIZE = 1100  # a block and a bit
SEEDS = [-1, 2**40 + 3]


def columns(filters: list[tuple[float, int, float, float]], seeds: list[int]) -> DrawColumns:
    temperatures, top_ks, top_ps, min_ps = zip(*filters, strict=True)

    def column(values: Any, dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=DEVICE)

    return DrawColumns(
        column(temperatures, torch.float32),
        column(top_ks, torch.int64),
        column(top_ps, torch.float64),
        column(min_ps, torch.float32),
        column(seeds, torch.int64),
        column([row % 3 for row in range(len(filters))], torch.int64),
    )


def drawn_by_reference(
    logits: torch.Tensor, columns: DrawColumns, indices: torch.Tensor
) -> list[int]:
    uniforms = reference.philox_uniform(columns.seeds, columns.choices, indices).tolist()
    tokens: list[int] = []
    for row, temperature in enumerate(columns.temperatures.tolist()):
        if temperature == 0:
            tokens.append(int(logits[row].argmax()))
            continue
        weights = reference.filtered_weights(
            logits[row].cpu(),
            temperature,
            min(int(columns.top_ks[row]), VOCAB_SIZE),
            float(columns.top_ps[row]),
            float(columns.min_ps[row]),
        )
        tokens.append(reference.draw(weights, uniforms[row]))
    return tokens


@pytest.mark.slow
@pytest.mark.parametrize("scale", [4.0, 0.01])
def test_the_same_draw(scale: float) -> None:
    """Peaked logits and nearly flat ones, whose nucleus is nearly the whole vocabulary."""
    logits = scale * noise(len(FILTERS), VOCAB_SIZE)
    for turn, seed in enumerate(SEEDS[:1] if scale < 1 else SEEDS):
        these = columns(FILTERS, [seed + row for row in range(len(FILTERS))])
        indices = torch.arange(len(FILTERS), device=DEVICE) + 1000 * turn
        tokens, is_bad = sample_tokens(logits, these, indices)
        assert tokens.tolist() == drawn_by_reference(logits, these, indices)
        assert not is_bad.any()


@pytest.mark.parametrize("filters", [(1.0, 30, 1.0, 0.0), (1.0, 0, 0.5, 0.0), (1.0, 0, 1.0, 0.1)])
def test_what_a_filter_takes_away(filters: tuple[float, int, float, float]) -> None:
    """With noise that draws another token where there is no filter."""
    logits = noise(1, VOCAB_SIZE)
    index = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    for seed in range(100):
        these, unfiltered = columns([filters], [seed]), columns([FILTERS[0]], [seed])
        expected = drawn_by_reference(logits, these, index)
        if expected != drawn_by_reference(logits, unfiltered, index):
            break
    else:
        raise AssertionError("no seed tells")
    assert sample_tokens(logits, these, index)[0].tolist() == expected


@pytest.mark.slow
def test_ties_are_kept_together() -> None:
    """Three share the second place, and top_k 2 keeps them all: each of the four is drawn."""
    row = torch.zeros(VOCAB_SIZE, device=DEVICE)
    row[[5, 900, 1099]] = 3.0
    row[17] = 3.5
    logits = row.expand(14, -1).contiguous()
    these = columns([(1.0, 2, 1.0, 0.0)] * 14, list(range(14)))
    tokens, _ = sample_tokens(logits, these, torch.zeros(14, dtype=torch.int64, device=DEVICE))
    assert set(tokens.tolist()) == {5, 17, 900, 1099}


def test_rows_that_are_no_numbers() -> None:
    """The likeliest is the first of the largest; a row of NaN or infinity says so."""
    logits = noise(4, VOCAB_SIZE)
    logits[0, [700, 1099]] = 90.0
    logits[1, 1034] = math.nan
    logits[2] = -math.inf
    logits[3, 3] = math.inf
    these = columns([(0.0, 0, 1.0, 0.0), (1.0, 0, 0.9, 0.0)] * 2, [1] * 4)
    tokens, is_bad = sample_tokens(logits, these, torch.zeros(4, dtype=torch.int64, device=DEVICE))
    assert is_bad.tolist() == [0, 1, 1, 1]
    assert int(tokens[0]) == 700
    assert 0 <= int(tokens.min()) <= int(tokens.max()) < VOCAB_SIZE


def test_penalties() -> None:
    """Row 1 of the logits has none, and stays as it was."""
    logits = noise(3, VOCAB_SIZE)
    prompts, outputs = [[1, 2, 2, 7], [5]], [[2, 9, 9, 9], [5, 6]]
    penalties = [(0.5, 0.25, 1.3), (-1.0, 0.0, 0.8)]
    expected = logits.clone()
    for index, row in enumerate((2, 0)):
        expected[row] = reference.apply_penalties(
            logits[row], prompts[index], outputs[index], penalties[index]
        )
    token_ids = np.full((2, 9), 1099, dtype=np.int32)  # behind the tokens lie other requests'
    for index in range(2):
        tokens = prompts[index] + outputs[index]
        token_ids[index, : len(tokens)] = tokens
    presence, frequency, repetition = torch.tensor(penalties, device=DEVICE).T.contiguous()
    apply_penalties(
        logits,
        PenaltyColumns(
            rows=torch.tensor([2, 0], device=DEVICE),
            token_ids=torch.from_numpy(token_ids).to(DEVICE),
            num_prompt_tokens=torch.tensor([4, 1], dtype=torch.int32, device=DEVICE),
            num_tokens=torch.tensor([8, 3], dtype=torch.int32, device=DEVICE),
            presence=presence,
            frequency=frequency,
            repetition=repetition,
        ),
    )
    torch.testing.assert_close(logits, expected)
    assert logits[2, 9] != noise(3, VOCAB_SIZE)[2, 9]
