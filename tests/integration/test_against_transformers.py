"""Our logits are those of transformers, for small random checkpoints, however they are computed.

Whole, in chunks, through shared blocks, after preemption and beside others: where positions, masks
or block tables are wrong, the numbers are too.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from executor_svc.model_loader import load_model
from executor_svc.models.causal_lm import CausalLM
from tests.executor_driver import ExecutorDriver
from tests.tiny_checkpoint import FAMILIES

transformers = pytest.importorskip("transformers")

NUM_DECODED = 3
LENGTH = 277  # three chunks of keys
OTHERS = (5, 33, 150)
TOLERANCE = 1e-4
CONFIG: dict[str, int | float | bool] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,  # the usual 0.02 gives logits that hardly depend on the context
}
CHECKPOINTS: dict[str, dict[str, Any]] = {
    **FAMILIES,
    "tied": {"tie_word_embeddings": True},
    "untied": {"tie_word_embeddings": False},
    "one_key_head": {"tie_word_embeddings": False, "num_key_value_heads": 1},
    "wide_heads": {"tie_word_embeddings": True, "head_dim": 32},
}


class Pair:
    """One checkpoint, loaded by us and by transformers."""

    def __init__(self, model_dir: Path) -> None:
        self.ours: CausalLM = load_model(model_dir, "float32")
        theirs = transformers.AutoModelForCausalLM
        # In float64: in float32 transformers itself is off by more than TOLERANCE at some tokens.
        self._theirs = theirs.from_pretrained(
            model_dir,
            dtype=torch.float64,
            attn_implementation="eager",
            experts_implementation="eager",
        ).eval()

    @torch.inference_mode()
    def assert_agrees(self, driver: ExecutorDriver, request_id: str) -> None:
        """At every output of the request, with what transformers makes of the same tokens."""
        request = driver.requests[request_id]
        expected = self._theirs(torch.tensor([request.token_ids])).logits[0]
        expected = expected[request.num_prompt_tokens - 1 : -1]
        indices = range(len(request.token_ids) - request.num_prompt_tokens)
        assert len(indices) > NUM_DECODED
        got = torch.stack([driver.logits[request_id, index] for index in indices])
        torch.testing.assert_close(got.double(), expected, atol=TOLERANCE, rtol=0)
        assert expected.std() > 100 * TOLERANCE


@pytest.fixture(scope="module", params=CHECKPOINTS)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model_dir = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(7)
    config = transformers.AutoConfig.for_model(
        **{"model_type": "llama"} | CONFIG | CHECKPOINTS[request.param]
    )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(model_dir)
    yield Pair(model_dir)
    torch.set_num_threads(num_threads)


def prompt(length: int) -> list[int]:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(0, int(CONFIG["vocab_size"]), (length,), generator=generator).tolist()


def test_prefilled_whole(pair: Pair) -> None:
    driver = ExecutorDriver(pair.ours)
    driver.add("a", prompt(LENGTH))
    driver.prefill("a")
    driver.decode(["a"], NUM_DECODED)
    pair.assert_agrees(driver, "a")


@pytest.mark.parametrize("chunks", [[1, 1, 7], [64, 64, 64], [33, 100]])
def test_prefilled_in_chunks(pair: Pair, chunks: list[int]) -> None:
    driver = ExecutorDriver(pair.ours)
    driver.add("a", prompt(LENGTH))
    driver.prefill("a", chunks)
    driver.decode(["a"], NUM_DECODED)
    pair.assert_agrees(driver, "a")


@pytest.mark.parametrize("num_shared_blocks", [1, 17])
def test_through_the_prefix_cache(pair: Pair, num_shared_blocks: int) -> None:
    """Blocks that another request has filled; only the rest is computed."""
    driver = ExecutorDriver(pair.ours)
    driver.add("first", prompt(LENGTH))
    driver.prefill("first")
    driver.add("a", prompt(LENGTH), shared_with="first", num_shared_blocks=num_shared_blocks)
    driver.prefill("a")
    driver.decode(["first", "a"], NUM_DECODED)
    pair.assert_agrees(driver, "a")
    pair.assert_agrees(driver, "first")


def test_after_preemption(pair: Pair) -> None:
    """Its blocks are another's; prompt and output so far come back whole, in other blocks."""
    driver = ExecutorDriver(pair.ours, num_blocks=40)
    driver.add("a", prompt(LENGTH))
    driver.prefill("a")
    driver.decode(["a"], 2)
    old_blocks = set(driver.requests["a"].block_ids)
    driver.preempt("a")
    driver.add("other", prompt(450))
    driver.prefill("other")
    assert old_blocks & set(driver.requests["other"].block_ids)
    driver.finish("other")
    driver.prefill("a")
    driver.decode(["a"], NUM_DECODED)
    pair.assert_agrees(driver, "a")


def test_in_a_mixed_batch(pair: Pair) -> None:
    """Decodes, a whole prefill and a chunk of one in the same steps."""
    driver = ExecutorDriver(pair.ours)
    for length in (*OTHERS, LENGTH):
        driver.add(str(length), prompt(length))
    driver.step({"5": 5, "277": 100})
    driver.step({"5": 1, "33": 33, "277": 150})
    driver.step({"277": 27, "33": 1, "150": 150, "5": 1})
    names = [str(length) for length in (*OTHERS, LENGTH)]
    driver.decode(names, NUM_DECODED)
    for name in names:
        pair.assert_agrees(driver, name)
