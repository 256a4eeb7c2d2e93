"""A request's logits are the same bits whatever runs beside it and however it was computed.

This is what makes a resumed stream the very text of an undisturbed run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from executor_svc.model_loader import load_model
from executor_svc.models.causal_lm import CausalLM
from kernels.grouped_weight import METHODS
from segue.model_files.demo_model import SMOLLM2_135M, cache_dir
from tests.executor_driver import ExecutorDriver
from tests.tiny_checkpoint import FAMILIES, write_tiny_llama

NUM_DECODED = 4
LENGTHS = [140, 5, 33, 16, 64, 20, 12, 80]
LONG = 277  # three chunks of keys


WIDER = {"hidden_size": 192}  # heads of 32: all layers are one call of the compiled kernels
TINY_MODELS: dict[str, dict[str, Any]] = {
    # Scaled positions are another table, and no other arithmetic.
    **{name: changes for name, changes in FAMILIES.items() if name != "llama3"},
    "mistral": FAMILIES["mistral"] | WIDER,
    "qwen2": FAMILIES["qwen2"] | WIDER,
    "grouped": {},
    "multi_head": {"num_attention_heads": 4, "num_key_value_heads": 4},
    "untied": {"tie_word_embeddings": False} | WIDER,
}
QUANTIZED_MODELS = ("grouped", "untied", "qwen2", "qwen3_moe")
Logits = dict[int, torch.Tensor]  # by output index


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((name, form), marks=[pytest.mark.slow] if name == "smollm2" else [])
        for form in ("float32", "bfloat16", *METHODS)
        for name in (*(QUANTIZED_MODELS if form in METHODS else TINY_MODELS), "smollm2")
    ],
    ids="-".join,
)
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CausalLM]:
    name, form = request.param
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    if name == "smollm2":
        model_dir = cache_dir() / "models" / SMOLLM2_135M.name
        if not model_dir.exists():
            pytest.skip("the demo model is not in the cache: segue model fetch smollm2-135m")
    else:
        model_dir = write_tiny_llama(tmp_path_factory.mktemp(name), **TINY_MODELS[name])
    if form in METHODS:
        yield load_model(model_dir, "bfloat16", form)
    else:
        yield load_model(model_dir, form)
    torch.set_num_threads(num_threads)


def prompt(length: int) -> list[int]:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(0, 320, (length,), generator=generator).tolist()


class Alone:
    """By prompt length: prefilled whole and decoded with nothing beside it. Computed once."""

    def __init__(self, model: CausalLM) -> None:
        self._model = model
        self._logits: dict[int, Logits] = {}

    def __getitem__(self, length: int) -> Logits:
        if length not in self._logits:
            driver = ExecutorDriver(self._model)
            driver.add("a", prompt(length))
            driver.prefill("a")
            driver.decode(["a"], NUM_DECODED)
            self._logits[length] = logits_of(driver, "a")
        return self._logits[length]


@pytest.fixture(scope="module")
def alone(model: CausalLM) -> Alone:
    return Alone(model)


def logits_of(driver: ExecutorDriver, request_id: str) -> Logits:
    return {index: row for (name, index), row in driver.logits.items() if name == request_id}


def assert_same_bits(got: Logits, expected: Logits) -> None:
    assert got.keys() == expected.keys()
    differing = [index for index in got if not torch.equal(got[index], expected[index])]
    assert not differing, f"logits of outputs {differing} have other bits"


def test_in_a_batch(model: CausalLM, alone: Alone) -> None:
    """Eight prompts in one step, and the decodes together."""
    driver = ExecutorDriver(model)
    for length in LENGTHS:
        driver.add(f"r{length}", prompt(length))
    driver.step({f"r{length}": length for length in LENGTHS})
    driver.decode([f"r{length}" for length in LENGTHS], NUM_DECODED)
    for length in LENGTHS if model.vocab_size < 1000 else LENGTHS[:3]:
        assert_same_bits(logits_of(driver, f"r{length}"), alone[length])


@pytest.mark.parametrize("chunks", [[1, 1, 7], [64, 64, 64], [128], [33, 100], [255]])
def test_prefilled_in_chunks(model: CausalLM, alone: Alone, chunks: list[int]) -> None:
    """While another request decodes: each chunk is part of a mixed batch."""
    driver = ExecutorDriver(model)
    driver.add("other", prompt(130))
    driver.prefill("other")
    driver.add("a", prompt(LONG))
    for chunk in [*chunks, LONG - sum(chunks)]:
        driver.step({"other": 1, "a": chunk})
    driver.decode(["a", "other"], NUM_DECODED)
    assert_same_bits(logits_of(driver, "a"), alone[LONG])


@pytest.mark.parametrize("num_shared_blocks", [1, 8, 17])
def test_through_the_prefix_cache(model: CausalLM, alone: Alone, num_shared_blocks: int) -> None:
    """Blocks that another request has computed, in the same step or before."""
    driver = ExecutorDriver(model)
    driver.add("first", prompt(LONG))
    driver.plan_blocks("first", LONG)
    driver.add("same_step", prompt(LONG), shared_with="first", num_shared_blocks=num_shared_blocks)
    rest = LONG - num_shared_blocks * 16
    driver.step({"first": LONG, "same_step": rest})
    driver.add("later", prompt(LONG), shared_with="first", num_shared_blocks=num_shared_blocks)
    driver.step({"first": 1, "later": rest})
    driver.decode(["same_step", "later"], NUM_DECODED)
    assert_same_bits(logits_of(driver, "same_step"), alone[LONG])
    assert_same_bits(logits_of(driver, "later"), alone[LONG])


def test_recomputed_after_preemption(model: CausalLM, alone: Alone) -> None:
    """Prompt and output so far come back as one prefill, in other blocks, beside others."""
    driver = ExecutorDriver(model)
    driver.add("a", prompt(LONG))
    driver.prefill("a")
    driver.decode(["a"], 2)
    driver.preempt("a")
    driver.add("other", prompt(130))
    driver.step({"other": 130})
    driver.step({"other": 1, "a": 100})
    driver.step({"other": 1, "a": LONG + 2 - 100})
    driver.decode(["a", "other"], NUM_DECODED - 2)
    assert_same_bits(logits_of(driver, "a"), alone[LONG])


def test_logits_say_something(alone: Alone) -> None:
    """Equal bits would be cheap if the model gave the same for every context."""
    first = [alone[length][0] for length in LENGTHS[:3]]
    assert all(not torch.equal(a, b) for i, a in enumerate(first) for b in first[:i])
    assert all(row.isfinite().all() for row in first)


def test_a_broken_row_leaves_nothing_behind(model: CausalLM, alone: Alone) -> None:
    """NaN in a block is cleared before another request gets the block."""
    driver = ExecutorDriver(model, num_blocks=24)
    driver.add("bad", prompt(LONG))
    driver.step({"bad": LONG - 1})
    seen_by_the_last = driver.requests["bad"].block_ids[(LONG - 2) // driver.kv_cache.block_size]
    driver.kv_cache.key(0)[seen_by_the_last] = torch.nan
    driver.kv_cache.value(0)[seen_by_the_last] = torch.nan
    output = driver.step({"bad": 1})
    assert list(output.row_errors) == ["bad"]
    driver.finish("bad")
    driver.add("a", prompt(LONG))
    driver.prefill("a")
    driver.decode(["a"], NUM_DECODED)
    assert_same_bits(logits_of(driver, "a"), alone[LONG])
