"""The self-check is silent where a row stands alone, and speaks up where it does not."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from executor_svc.model_loader import LoadOptions, load_model, load_model_runner
from executor_svc.models.causal_lm import CausalLM
from executor_svc.self_check import check_bit_exactness
from kernels.row_exact_linear import RowCounts
from tests.tiny_checkpoint import write_tiny_llama


@pytest.fixture
def model(tmp_path: Path) -> Iterator[CausalLM]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield load_model(write_tiny_llama(tmp_path), "bfloat16")
    torch.set_num_threads(num_threads)


def test_nothing_found(model: CausalLM) -> None:
    assert check_bit_exactness(model, 16) == []


def test_a_product_that_depends_on_the_batch(
    model: CausalLM, caplog: pytest.LogCaptureFixture
) -> None:
    """As on a CPU whose library sums in another order for few rows."""
    product = model.products()["down_projection"]
    exact = product._product  # pyright: ignore[reportPrivateUsage]

    def inexact(x: torch.Tensor) -> torch.Tensor:
        return exact(x) * (1.01 if len(x) < 100 else 1.0)

    product._product = inexact  # pyright: ignore[reportPrivateUsage]
    with caplog.at_level(logging.WARNING):
        findings = check_bit_exactness(model, 16)
    assert len(findings) == 1
    assert "down_projection" in findings[0]
    assert "down_projection" in caplog.text


def test_no_class_of_row_counts(model: CausalLM) -> None:
    model.products()["lm_head"].row_counts = RowCounts((64,), is_exact=False)
    assert "lm_head" in check_bit_exactness(model, 16)[0]


def test_it_runs_at_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def check(model: CausalLM, block_size: int) -> list[str]:
        seen.append(block_size)
        return []

    monkeypatch.setattr("executor_svc.model_loader.check_bit_exactness", check)
    load_model_runner(write_tiny_llama(tmp_path), LoadOptions(num_blocks=4, block_size=8))
    assert seen == [8]
