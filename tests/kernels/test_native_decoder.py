"""All layers as one call on several threads: the bits of the same ops one by one on one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from executor_svc.model_loader import load_model
from executor_svc.models.decoder_layers import DecoderLayers
from kernels.native import NativeKernels
from tests.executor_driver import ExecutorDriver
from tests.tiny_checkpoint import write_tiny_llama

# Sizes that nothing has to be padded for; three key heads' worth of queries are no power of two.
SHAPE: dict[str, Any] = {
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "num_hidden_layers": 3,
    "head_dim": 32,
}
WINDOW = {"sliding_window": 9, "use_sliding_window": True, "max_window_layers": 1}
HEAD_NORMS = {"model_type": "qwen3", "dtype": "bfloat16"}
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "bfloat16": ({"dtype": "bfloat16"}, "none"),
    "float32": ({"dtype": "float32"}, "none"),
    "int8": ({"dtype": "bfloat16"}, "int8"),
    "q4_1": ({"dtype": "bfloat16"}, "q4_1"),
    "biases": ({"dtype": "bfloat16", "attention_bias": True, "mlp_bias": True}, "none"),
    "int8 biases": ({"dtype": "bfloat16", "mlp_bias": True}, "int8"),
    "windows": ({"dtype": "bfloat16", "model_type": "qwen2", **WINDOW}, "none"),
}
PADDED = {"hidden_size": 80, "dtype": "bfloat16"}


def driver(model_dir: Path, quantization: str = "none", *, fused: bool) -> ExecutorDriver:
    with pytest.MonkeyPatch.context() as patch:
        if not fused:
            patch.setattr(DecoderLayers, "_fused", lambda self: None)
        model = load_model(model_dir, "auto", quantization)
    assert is_fused(model) == fused
    return ExecutorDriver(model, num_blocks=64)


def is_fused(model: Any) -> bool:
    return model._layers._native is not None


def run(driver: ExecutorDriver) -> None:
    """A prefill in chunks of few and of many rows beside a decode, then decodes of both."""
    driver.add("a", list(range(20, 155)))
    driver.add("b", list(range(100, 104)))
    driver.step({"b": 4, "a": 5})
    driver.step({"a": 31, "b": 1})
    driver.step({"a": 99, "b": 1})
    driver.decode(["b", "a"], 3)


@pytest.mark.usefixtures("linear_kind")
@pytest.mark.parametrize("case", CASES)
def test_bits_of_the_ops_one_by_one(case: str, tmp_path: Path, native: NativeKernels) -> None:
    config, quantization = CASES[case]
    model_dir = write_tiny_llama(tmp_path / "tiny", **SHAPE | config)
    fused = driver(model_dir, quantization, fused=True)
    one_by_one = driver(model_dir, quantization, fused=False)
    run(fused)
    native.set_num_threads(1)
    run(one_by_one)
    assert fused.logits.keys() == one_by_one.logits.keys()
    assert all(fused.logits[key].equal(one_by_one.logits[key]) for key in fused.logits)
    keys, others = fused.kv_cache.key(2), one_by_one.kv_cache.key(2)
    assert keys.any()
    assert keys.equal(others)


@pytest.mark.parametrize("config", [PADDED, HEAD_NORMS], ids=["padded inputs", "head norms"])
def test_other_layers_stay_apart(
    config: dict[str, Any], tmp_path: Path, native: NativeKernels
) -> None:
    model = load_model(write_tiny_llama(tmp_path / "tiny", **SHAPE | config), "auto")
    assert not is_fused(model)
