"""Our greedy text in float32 is that of transformers, token by token, for twenty prompts.

The reference ids are a file, made by scripts/make_reference_ids.py. Where transformers' own two
best logits nearly tie, rounding may choose, and behind such a place the texts may differ.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import torch

from executor_svc.model_loader import load_model
from segue.model_files.demo_model import ensure_demo_model
from tests.executor_driver import ExecutorDriver

DATA = Path(__file__).parent / "data" / "smollm2_greedy.json"
NUM_PROMPTS = 20
NUM_OUTPUT_TOKENS = 64
MIN_GAP = 1e-3

Reference = dict[str, Any]  # what the script writes of one prompt


@pytest.fixture(scope="module")
def driver() -> Iterator[ExecutorDriver]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield ExecutorDriver(load_model(ensure_demo_model(), "float32"))
    torch.set_num_threads(num_threads)


def num_certain(reference: Reference) -> int:
    """Output tokens before the first near tie."""
    return sum(1 for _ in takewhile(lambda gap: gap >= MIN_GAP, reference["gaps"]))


@pytest.mark.slow
@pytest.mark.timeout(120)  # about 12 s of computing, which a busy machine stretches
def test_greedy_text_is_that_of_transformers(driver: ExecutorDriver) -> None:
    references: list[Reference] = json.loads(DATA.read_text(encoding="utf-8"))["references"]
    assert len(references) == NUM_PROMPTS
    for reference in references:
        driver.add(reference["prompt"], reference["prompt_ids"])
    prompts = list(driver.requests)
    driver.step({prompt: len(driver.requests[prompt].token_ids) for prompt in prompts})
    driver.decode(prompts, NUM_OUTPUT_TOKENS - 1)

    differing: dict[str, int] = {}
    for reference in references:
        ours, theirs = driver.outputs(reference["prompt"]), reference["output_ids"]
        assert len(ours) == len(theirs) == NUM_OUTPUT_TOKENS
        for index in range(num_certain(reference)):
            if ours[index] != theirs[index]:
                differing[reference["prompt"]] = index
                break
    lengths = [num_certain(reference) for reference in references]
    num_ties = sum(gap < MIN_GAP for reference in references for gap in reference["gaps"])
    print(
        f"{lengths.count(NUM_OUTPUT_TOKENS)} of {NUM_PROMPTS} prompts compared up to "
        f"{NUM_OUTPUT_TOKENS} tokens, {sum(lengths)} tokens in all; transformers' two best logits "
        f"are closer than {MIN_GAP} at {num_ties} positions"
    )
    assert differing == {}, "first differing output by prompt"
    assert sum(lengths) > NUM_PROMPTS * NUM_OUTPUT_TOKENS // 2, "too little was compared"


@pytest.mark.slow
def test_bfloat16_is_near_float32(driver: ExecutorDriver) -> None:
    """Of the logits after each prompt. Summing what layers add in bfloat16 as well, as is done
    elsewhere, takes this from 0.13 to 0.25."""
    references: list[Reference] = json.loads(DATA.read_text(encoding="utf-8"))["references"]
    coarse = ExecutorDriver(load_model(ensure_demo_model(), "bfloat16"))
    errors: list[torch.Tensor] = []
    for index, reference in enumerate(references):
        name = f"bfloat16 {index}"
        for one in (driver, coarse):
            one.add(name, reference["prompt_ids"])
            one.prefill(name)
        errors.append(coarse.logits[name, 0] - driver.logits[name, 0])
    error = torch.stack(errors).square().mean().sqrt().item()
    print(f"root mean square of the error: {error:.3f}")
    assert 0.0 < error < 0.18
