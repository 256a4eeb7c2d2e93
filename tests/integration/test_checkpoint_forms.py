"""What config.json and the weights' files may say is read as Hugging Face transformers reads it.

How a request comes to be computed is test_against_transformers.py's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from executor_svc.model_loader import load_model
from tests.executor_driver import ExecutorDriver
from tests.tiny_checkpoint import write_tiny_llama

# Looked up here, since the first look takes seconds that a test does not have.
LlamaForCausalLM: Any = pytest.importorskip("transformers").LlamaForCausalLM

PROMPT = torch.randint(0, 320, (150,), generator=torch.Generator().manual_seed(1)).tolist()
OTHER = torch.randint(0, 320, (70,), generator=torch.Generator().manual_seed(2)).tolist()
CHECKPOINTS: dict[str, dict[str, Any]] = {
    "multi_head": {"num_attention_heads": 4, "num_key_value_heads": 4},
    "own_theta": {"rope_theta": 100000.0},
    "llama3_rope": {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "linear_rope": {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
}


class Pair:
    """One checkpoint, read by us and by transformers."""

    def __init__(self, model_dir: Path) -> None:
        self._theirs = LlamaForCausalLM.from_pretrained(
            model_dir, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        self.driver = ExecutorDriver(load_model(model_dir, "float32"))

    @torch.inference_mode()
    def assert_agreement(self, request_id: str) -> None:
        """Of all tokens that this request has sampled."""
        request = self.driver.requests[request_id]
        logits = self._theirs(torch.tensor([request.token_ids])).logits[0]
        ours = {i: row for (name, i), row in self.driver.logits.items() if name == request_id}
        assert len(ours) == len(request.token_ids) - request.num_prompt_tokens
        for index, row in ours.items():
            expected = logits[request.num_prompt_tokens + index - 1]
            torch.testing.assert_close(row, expected, rtol=1e-4, atol=1e-4)


@pytest.fixture(params=CHECKPOINTS)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Pair(write_tiny_llama(tmp_path, **CHECKPOINTS[request.param]))
    torch.set_num_threads(num_threads)


def test_prefilled_whole_and_decoded(pair: Pair) -> None:
    pair.driver.add("a", PROMPT)
    pair.driver.prefill("a")
    pair.driver.decode(["a"], 10)
    pair.assert_agreement("a")


def test_sharded_weights(tmp_path: Path) -> None:
    """Split by an index, as large checkpoints are."""
    whole = write_tiny_llama(tmp_path / "whole")
    model = LlamaForCausalLM.from_pretrained(whole, dtype=torch.float32)
    model.save_pretrained(tmp_path / "split", max_shard_size="200KB")
    assert (tmp_path / "split" / "model.safetensors.index.json").exists()
    pair = Pair(tmp_path / "split")
    pair.driver.add("a", OTHER)
    pair.driver.prefill("a")
    pair.assert_agreement("a")
