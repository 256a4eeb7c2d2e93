"""The sampler's parameters, one by one, and that rows do not disturb each other."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch

from executor_svc.sampler import Sampler, SamplerOutput, SamplingBatch
from segue.types import SamplingParams

VOCAB_SIZE = 400
GREEDY = SamplingParams(seed=1, max_tokens=10, temperature=0.0)
SEEDED = SamplingParams(seed=7, max_tokens=10, temperature=1.0)


def batch(
    params: list[SamplingParams],
    prompts: list[list[int]] | None = None,
    outputs: list[list[int]] | None = None,
    choices: list[int] | None = None,
) -> SamplingBatch:
    prompts = prompts or [[1]] * len(params)
    outputs = outputs or [[]] * len(params)
    token_ids = np.full((len(params), 16), 399, dtype=np.int32)  # beyond a row's tokens: nonsense
    for row, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        token_ids[row, : len(prompt) + len(output)] = prompt + output
    num_prompt = np.array([len(prompt) for prompt in prompts], dtype=np.int32)
    num_output = np.array([len(output) for output in outputs], dtype=np.int32)
    return SamplingBatch(
        params=params,
        choices=choices or [0] * len(params),
        output_indices=num_output,
        token_ids=token_ids,
        table_rows=np.arange(len(params), dtype=np.int32),
        num_prompt_tokens=num_prompt,
        num_tokens=num_prompt + num_output,
    )


def sample(logits: torch.Tensor, rows: SamplingBatch) -> SamplerOutput:
    return Sampler(VOCAB_SIZE).sample(logits.clone(), rows)


def noise(num_rows: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(num_rows)
    return torch.randn(num_rows, VOCAB_SIZE, generator=generator)


def test_greedy_takes_the_lowest_of_equals() -> None:
    logits = torch.zeros(1, VOCAB_SIZE)
    logits[0, [30, 9, 200]] = 2.0
    assert sample(logits, batch([GREEDY])).token_ids.tolist() == [9]


def test_seeded_draws_depend_on_seed_choice_and_index_alone() -> None:
    logits = noise(1).expand(4, -1)
    other_seed = replace(SEEDED, seed=8)
    rows = batch(
        [SEEDED, SEEDED, SEEDED, other_seed],
        outputs=[[5, 6], [5, 6], [5, 6, 7], [5, 6]],
        choices=[0, 1, 0, 0],
    )
    drawn = sample(logits, rows).token_ids.tolist()
    assert len(set(drawn)) == 4
    again = sample(logits[:1], batch([SEEDED], outputs=[[8, 9]]))
    assert again.token_ids.tolist() == drawn[:1]


def test_rows_of_all_kinds_stand_alone() -> None:
    """Each parameter takes its own path; a batch of them all gives what each gives alone."""
    kinds = [
        GREEDY,
        SEEDED,
        replace(SEEDED, top_k=3),
        replace(SEEDED, top_p=0.5),
        replace(SEEDED, min_p=0.2, temperature=0.3),
        replace(SEEDED, presence_penalty=1.0, frequency_penalty=0.5, repetition_penalty=1.2),
        replace(GREEDY, repetition_penalty=3.0),
        replace(GREEDY, logit_bias=((17, 100.0),)),
        replace(SEEDED, min_tokens=9, eos_token_id=2, stop_token_ids=(3,)),
        replace(SEEDED, num_logprobs=4),
    ]
    logits = noise(len(kinds))
    outputs = [[row, row + 1, 5] for row in range(len(kinds))]
    together = sample(logits, batch(kinds, outputs=outputs))
    for row, params in enumerate(kinds):
        alone = sample(logits[row : row + 1], batch([params], outputs=[outputs[row]]))
        assert alone.token_ids[0] == together.token_ids[row], params
        assert alone.logprobs.get(0) == together.logprobs.get(row)


def test_logit_bias() -> None:
    params = replace(GREEDY, logit_bias=((17, 100.0), (18, -100.0)))
    assert sample(noise(1), batch([params])).token_ids.tolist() == [17]


def test_min_tokens_hold_back_every_end() -> None:
    """EOS and stop ids may not come before, and may come after."""
    logits = noise(1)
    logits[0, [2, 3]] = 50.0
    params = replace(GREEDY, min_tokens=2, eos_token_id=2, stop_token_ids=(3,))
    assert sample(logits, batch([params], outputs=[[9]])).token_ids[0] not in (2, 3)
    assert sample(logits, batch([params], outputs=[[9, 9]])).token_ids[0] == 2


def test_frequency_penalty_counts_output_only() -> None:
    logits = torch.zeros(1, VOCAB_SIZE)
    logits[0, [10, 11, 12]] = torch.tensor([3.0, 2.9, 1.0])
    params = replace(GREEDY, frequency_penalty=0.2)
    assert sample(logits, batch([params], prompts=[[10, 10]])).token_ids[0] == 10
    assert sample(logits, batch([params], outputs=[[10]])).token_ids[0] == 11


def test_repetition_penalty_counts_the_prompt_too() -> None:
    logits = torch.zeros(1, VOCAB_SIZE)
    logits[0, [10, 11]] = torch.tensor([3.0, 2.9])
    params = replace(GREEDY, repetition_penalty=1.5)
    assert sample(logits, batch([params], prompts=[[10]])).token_ids[0] == 11


def test_logprobs_are_the_models_own() -> None:
    """Whatever bias and temperature do to the draw; equal ones come in the order of their ids."""
    logits = torch.zeros(1, VOCAB_SIZE)
    logits[0, [40, 20, 30]] = torch.tensor([1.0, 1.0, 2.0])
    params = replace(GREEDY, num_logprobs=2, logit_bias=((7, 90.0),))
    output = sample(logits, batch([params]))
    expected = torch.log_softmax(logits[0].double(), dim=0)
    assert output.token_ids.tolist() == [7]
    assert output.logprobs[0].top_token_ids == (30, 20)
    assert math.isclose(output.logprobs[0].logprob, float(expected[7]), rel_tol=1e-6)
    assert math.isclose(output.logprobs[0].top_logprobs[1], float(expected[20]), rel_tol=1e-6)


def test_a_bad_row_is_its_own_fault() -> None:
    """NaN in one row is an error of that row; the others draw what they would have drawn."""
    logits = noise(3)
    expected = sample(logits, batch([SEEDED] * 3)).token_ids.tolist()
    logits[1, 5] = math.nan
    output = sample(logits, batch([SEEDED] * 3))
    assert list(output.errors) == [1]
    assert output.token_ids[[0, 2]].tolist() == [expected[0], expected[2]]


def test_kept_columns_follow_the_batch() -> None:
    """The same number of rows with other parameters is another batch."""
    sampler, logits = Sampler(VOCAB_SIZE), noise(1)
    biased = replace(GREEDY, logit_bias=((17, 100.0),))
    assert sampler.sample(logits.clone(), batch([biased])).token_ids[0] == 17
    assert sampler.sample(logits.clone(), batch([GREEDY])).token_ids[0] == int(logits.argmax())
    assert sampler.sample(logits.clone(), batch([biased])).token_ids[0] == 17
