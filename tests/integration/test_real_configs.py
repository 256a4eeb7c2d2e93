"""The shapes of real checkpoints load and run: vocabulary, hidden size, heads, windows, experts.

The numbers are those of the published config.json files; weights are random, and few layers stand
for all, since each has the same shapes. transformers is not asked: at this size that costs minutes,
and `test_against_transformers.py` does it for the same architectures.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from executor_svc.model_loader import load_model
from executor_svc.models.causal_lm import CausalLM
from executor_svc.self_check import check_bit_exactness
from tests.executor_driver import ExecutorDriver
from tests.tiny_checkpoint import write_checkpoint

LLAMA_3_ROPE = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def config(model_type: str, **values: Any) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "dtype": "bfloat16",
        "hidden_act": "silu",
        "num_hidden_layers": 2,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 4096,  # the real ones make tables of cosines that are large
    } | values


REAL_CONFIGS = {
    "Qwen2.5-0.5B-Instruct": config(
        "qwen2",
        vocab_size=151936,
        hidden_size=896,
        intermediate_size=4864,
        num_attention_heads=14,
        num_key_value_heads=2,
        rope_theta=1000000.0,
        sliding_window=32768,
        use_sliding_window=False,
        max_window_layers=21,
        tie_word_embeddings=True,
    ),
    "Qwen3-0.6B": config(
        "qwen3",
        vocab_size=151936,
        hidden_size=1024,
        intermediate_size=3072,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        rope_theta=1000000.0,
        sliding_window=None,
        use_sliding_window=False,
        tie_word_embeddings=True,
    ),
    "Llama-3.2-1B-Instruct": config(
        "llama",
        vocab_size=128256,
        hidden_size=2048,
        intermediate_size=8192,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        rope_theta=500000.0,
        rope_scaling=LLAMA_3_ROPE,
        tie_word_embeddings=True,
    ),
    "Mistral-7B-v0.1": config(
        "mistral",
        num_hidden_layers=1,
        vocab_size=32000,
        hidden_size=4096,
        intermediate_size=14336,
        num_attention_heads=32,
        num_key_value_heads=8,
        rope_theta=10000.0,
        sliding_window=4096,
        tie_word_embeddings=False,
    ),
    "Qwen3-30B-A3B": config(
        "qwen3_moe",
        num_hidden_layers=1,
        vocab_size=151936,
        hidden_size=2048,
        intermediate_size=6144,
        moe_intermediate_size=768,
        num_experts=16,  # of 128: the memory of a test
        num_experts_per_tok=8,
        norm_topk_prob=True,
        num_attention_heads=32,
        num_key_value_heads=4,
        head_dim=128,
        rope_theta=1000000.0,
        tie_word_embeddings=True,  # it is not; its head has the embeddings' shape
    ),
}
SMALL = {"Qwen2.5-0.5B-Instruct"}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=[] if name in SMALL else [pytest.mark.slow])
        for name in REAL_CONFIGS
    ],
)
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CausalLM]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model_dir = tmp_path_factory.mktemp(request.param)
    values = REAL_CONFIGS[request.param]
    loaded = load_model(write_checkpoint(model_dir, values))
    (model_dir / "model.safetensors").unlink()  # gigabytes, and pytest keeps its directories
    spec = loaded.kv_cache_spec
    assert loaded.vocab_size == values["vocab_size"]
    assert spec.num_kv_heads == values["num_key_value_heads"]
    assert spec.head_dim == values.get(
        "head_dim", values["hidden_size"] // values["num_attention_heads"]
    )
    yield loaded
    torch.set_num_threads(num_threads)


@pytest.mark.timeout(120)
def test_runs_and_is_bit_exact(model: CausalLM) -> None:
    """A prompt in a batch and in chunks has the logits that it has alone."""
    generator = torch.Generator().manual_seed(3)
    prompts = [
        torch.randint(0, model.vocab_size, (size,), generator=generator).tolist()
        for size in (150, 7, 20)
    ]
    alone = ExecutorDriver(model)
    alone.add("a", prompts[0])
    alone.prefill("a")
    alone.decode(["a"], 2)

    driver = ExecutorDriver(model)
    for name, tokens in zip("abc", prompts, strict=True):
        driver.add(name, tokens)
    driver.step({"b": 7, "a": 33, "c": 20})
    driver.step({"b": 1, "a": 117, "c": 1})
    driver.decode(["c", "a", "b"], 2)

    expected = [alone.logits["a", index] for index in range(3)]
    assert all(row.isfinite().all() for row in expected)
    assert all(torch.equal(driver.logits["a", index], row) for index, row in enumerate(expected))


@pytest.mark.timeout(120)
def test_the_self_check_finds_nothing(model: CausalLM) -> None:
    """Each of the products has a class of row counts, at these sizes too."""
    assert check_bit_exactness(model, block_size=16) == []
