"""Filters, draws and penalties against the reference, and rows against themselves alone."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from kernels import reference
from kernels.sampling import (
    FilterColumns,
    Noise,
    apply_penalties,
    argmax,
    argmax_in_torch,
    draw,
    draw_in_torch,
    draw_tokens,
    filtered_weights,
    log_normalizers,
)

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
]
VOCAB_SIZE = 3000  # not a whole number of blocks


def columns(filters: list[tuple[float, int, float, float]]) -> FilterColumns:
    temperatures, top_ks, top_ps, min_ps = zip(*filters, strict=True)
    return FilterColumns(
        torch.tensor(temperatures),
        torch.tensor(top_ks),
        torch.tensor(top_ps, dtype=torch.float64),
        torch.tensor(min_ps),
    )


def logits(num_rows: int, scale: float = 4.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(num_rows)
    return scale * torch.randn(num_rows, VOCAB_SIZE, generator=generator)


def test_filters_agree_with_the_reference() -> None:
    rows = logits(len(FILTERS))
    got = filtered_weights(rows, columns(FILTERS))
    for row, (temperature, top_k, top_p, min_p) in enumerate(FILTERS):
        top_k = min(top_k, VOCAB_SIZE)
        expected = reference.filtered_weights(rows[row], temperature, top_k, top_p, min_p)
        assert torch.equal(got[row] > 0, expected > 0), FILTERS[row]
        torch.testing.assert_close(got[row].double(), expected)


def test_wide_nucleus() -> None:
    """More tokens than candidates are looked at first: the row is sorted after all."""
    flat = logits(2, scale=0.01)
    got = filtered_weights(flat, columns([(1.0, 0, 0.95, 0.0)] * 2))
    for row in range(2):
        expected = reference.filtered_weights(flat[row], 1.0, 0, 0.95, 0.0)
        assert torch.equal(got[row] > 0, expected > 0)
        assert 0.94 * VOCAB_SIZE < int((got[row] > 0).sum()) < 0.96 * VOCAB_SIZE


def test_ties_are_kept_together() -> None:
    row = torch.zeros(1, VOCAB_SIZE)
    row[0, [5, 900, 2999]] = 3.0
    weights = filtered_weights(row, columns([(1.0, 2, 1.0, 0.0)]))
    assert torch.nonzero(weights[0]).squeeze(1).tolist() == [5, 900, 2999]


@pytest.mark.parametrize("uniform", [1e-10, 0.1, 0.5, 0.999, 1 - 1e-10])
def test_draws_agree_with_the_reference(uniform: float) -> None:
    weights = filtered_weights(logits(len(FILTERS)), columns(FILTERS))
    uniforms = torch.full((len(FILTERS),), uniform, dtype=torch.float64)
    expected = [reference.draw(row, uniform) for row in weights]
    assert draw(weights, uniforms).tolist() == expected


def test_draws_follow_the_weights() -> None:
    """Three tokens, in blocks far apart; nothing filtered is ever drawn."""
    weights = torch.zeros(1, VOCAB_SIZE)
    weights[0, 7], weights[0, 1500], weights[0, 2999] = 1.0, 2.0, 1.0
    uniforms = (torch.arange(400, dtype=torch.float64) + 0.5) / 400
    drawn = draw(weights.expand(400, -1).contiguous(), uniforms)
    assert drawn.tolist() == [7] * 100 + [1500] * 200 + [2999] * 100


def test_rows_stand_alone() -> None:
    rows = logits(len(FILTERS))
    uniforms = torch.linspace(0.1, 0.9, len(FILTERS), dtype=torch.float64)
    weights = filtered_weights(rows, columns(FILTERS))
    drawn, normalizers = draw(weights, uniforms), log_normalizers(rows)
    for row in range(len(FILTERS)):
        alone = filtered_weights(rows[row : row + 1], columns([FILTERS[row]]))
        assert torch.equal(alone[0], weights[row])
        assert draw(alone, uniforms[row : row + 1])[0] == drawn[row]
        assert log_normalizers(rows[row : row + 1])[0] == normalizers[row]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("find", [argmax, argmax_in_torch])
@pytest.mark.parametrize("vocab_size", [VOCAB_SIZE, VOCAB_SIZE - 8, 17, 16, 15, 1])
def test_argmax_is_the_first_of_the_largest(
    vocab_size: int, find: Callable[..., tuple[torch.Tensor, torch.Tensor]], dtype: torch.dtype
) -> None:
    last = vocab_size - 1
    rows = logits(8)[:, :vocab_size].to(dtype).contiguous()
    rows[1, [vocab_size // 3, last]] = 90.0
    rows[2] = -math.inf
    rows[3, [vocab_size // 2, last]] = math.nan
    rows[4, [last, 0]] = 90.0
    rows[5, last] = math.nan
    rows[6, last] = math.inf
    rows[7] = -1.0
    expected = [int(rows[0].argmax()), vocab_size // 3, 0, vocab_size // 2, 0, last, last, 0]
    token_ids, values = find(rows)
    assert token_ids.tolist() == expected
    assert values.dtype == torch.float32
    of_those = rows[torch.arange(8), token_ids].float()
    torch.testing.assert_close(values, of_those, rtol=0, atol=0, equal_nan=True)


def noise_of(num_rows: int) -> Noise:
    seeds = torch.arange(num_rows) * 7919 - 2**62
    return Noise(seeds, torch.arange(num_rows) % 3, torch.arange(num_rows) + 2**31)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("find", [draw_tokens, draw_in_torch])
@pytest.mark.parametrize("vocab_size", [VOCAB_SIZE, 256, 17, 1])
def test_drawn_tokens_are_those_of_the_reference(
    vocab_size: int, find: Callable[..., torch.Tensor], dtype: torch.dtype
) -> None:
    """Each filter with many numbers; of the logits' rows some are left out."""
    filters = FILTERS * 25
    rows = torch.arange(1, 2 * len(filters), 2)
    of_all = logits(2 * len(filters))[:, :vocab_size].to(dtype).contiguous()
    noise = noise_of(len(filters))
    uniforms = reference.philox_uniform(noise.seeds, noise.choices, noise.output_indices)
    expected: list[int] = []
    for row, uniform, filtered in zip(rows, uniforms.tolist(), filters, strict=True):
        temperature, top_k, top_p, min_p = filtered
        top_k = min(top_k, vocab_size)
        weights = reference.filtered_weights(of_all[row].float(), temperature, top_k, top_p, min_p)
        expected.append(reference.draw(weights, uniform))
    assert find(of_all, rows, columns(filters), noise).tolist() == expected


def test_a_wide_nucleus_is_drawn_from_whole() -> None:
    """More tokens than candidates are looked at first."""
    flat = torch.zeros(200, VOCAB_SIZE)
    filters = columns([(1.0, 0, 0.9, 0.0)] * 200)
    drawn = draw_tokens(flat, torch.arange(200), filters, noise_of(200))
    assert int(drawn.max()) > 2000
    assert torch.equal(drawn, draw_in_torch(flat, torch.arange(200), filters, noise_of(200)))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", [slice(None), slice(0, 1), slice(5, 9)])
def test_what_is_no_number_draws_some_token(where: slice, value: float) -> None:
    """Such a row ends with an error; until then nothing may read or write beside it."""
    rows = logits(len(FILTERS))
    rows[:, where] = value
    drawn = draw_tokens(rows, torch.arange(len(FILTERS)), columns(FILTERS), noise_of(len(FILTERS)))
    assert all(0 <= token < VOCAB_SIZE for token in drawn.tolist())


def test_log_normalizers() -> None:
    rows = logits(3)
    rows[1, 5] = -math.inf
    torch.testing.assert_close(log_normalizers(rows), rows.double().logsumexp(dim=1))


def test_penalties_agree_with_the_reference() -> None:
    rows = logits(2)
    prompts, outputs = [[1, 2, 2, 7], [5]], [[2, 9, 9, 9], [5, 6]]
    penalties = [(0.5, 0.25, 1.3), (-1.0, 0.0, 0.8)]
    expected = torch.stack(
        [reference.apply_penalties(rows[i], prompts[i], outputs[i], penalties[i]) for i in range(2)]
    )
    seen, counts = torch.zeros(2, VOCAB_SIZE), torch.zeros(2, VOCAB_SIZE)
    for row in range(2):
        seen[row, prompts[row] + outputs[row]] = 1
        for token_id in outputs[row]:
            counts[row, token_id] += 1
    presence, frequency, repetition = torch.tensor(penalties).T.unsqueeze(2)
    got = rows.clone()
    apply_penalties(got, seen > 0, counts, (presence, frequency, repetition))
    torch.testing.assert_close(got, expected)
    assert not torch.equal(got, rows)
