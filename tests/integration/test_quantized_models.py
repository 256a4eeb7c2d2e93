"""What `--quantization` makes of a whole model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from executor_svc.model_loader import load_model
from kernels.grouped_weight import METHODS
from segue.model_files.demo_model import SMOLLM2_135M, cache_dir
from tests.executor_driver import ExecutorDriver
from tests.tiny_checkpoint import write_tiny_llama

PROMPT = [7, 300, 12, 5, 5, 190, 33]


def logits(model_dir: Path, quantization: str) -> torch.Tensor:
    """Of a prompt and three tokens behind it."""
    driver = ExecutorDriver(load_model(model_dir, "bfloat16", quantization))
    driver.add("a", PROMPT)
    driver.prefill("a")
    driver.decode(["a"], 3)
    return torch.stack([driver.logits["a", index] for index in range(4)])


@pytest.mark.slow
def test_the_demo_model_in_its_own_groups_has_the_bits_of_bfloat16() -> None:
    """It was made from a Q4_1 file, so holding it in Q4_1 loses nothing at all."""
    model_dir = cache_dir() / "models" / SMOLLM2_135M.name
    if not model_dir.exists():
        pytest.skip("the demo model is not in the cache: segue model fetch smollm2-135m")
    assert torch.equal(logits(model_dir, "q4_1"), logits(model_dir, "none"))


@pytest.mark.parametrize("method", METHODS)
def test_logits_are_near_and_not_the_same(method: str, tmp_path: Path) -> None:
    """A weight that was not quantised before loses something, and 4 bits more of it than 8."""
    model_dir = write_tiny_llama(tmp_path)
    exact, got = logits(model_dir, "none")[0], logits(model_dir, method)[0]
    error = ((got - exact).norm() / exact.norm()).item()
    assert 0 < error < {"int8": 0.05, "q4_1": 0.5}[method]
