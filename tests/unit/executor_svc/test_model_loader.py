"""What can not be loaded is one readable line; what can be is sized as asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from executor_svc.model_loader import LoadOptions, ModelError, load_model, load_model_runner
from executor_svc.models.llama import LlamaModel
from executor_svc.quantization import check_quantization
from segue.model_files.hand import write_hand_model
from tests.tiny_checkpoint import write_tiny_llama


def change_config(model_dir: Path, **changes: object) -> None:
    path = model_dir / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba' is not one of llama, "),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rotary scaling 'yarn'"),
        ({"intermediate_size": 161}, r"mlp.gate_proj.weight is \(160, 96\)"),
        ({"num_hidden_layers": 4}, "no tensor model.layers.3."),
        ({"num_attention_heads": None}, "config.json: int"),
        ({"num_key_value_heads": 4}, "6 heads can not share 4"),
        ({"dtype": "int8"}, "dtype 'int8' is not one of"),
        ({"quantization_config": {"quant_method": "gptq"}}, "weights quantised by 'gptq'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"layer_types": ["linear_attention"] * 3}, "layer_types: 'linear_attention'"),
        ({"model_type": "qwen3_moe"}, "config.json has no num_experts"),
        ({"model_type": "qwen2"}, "no tensor model.layers.0.self_attn.q_proj.bias"),
        ({"model_type": "qwen3"}, "no tensor model.layers.0.self_attn.q_norm.weight"),
    ],
)
def test_a_model_that_can_not_be_served(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    change_config(write_tiny_llama(tmp_path), **changes)
    with pytest.raises(ModelError, match=message):
        load_model_runner(tmp_path, LoadOptions(num_blocks=4))


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config.json: No such file"):
        load_model_runner(tmp_path)
    write_tiny_llama(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not a tensor")
    with pytest.raises(ModelError, match=r"model.safetensors"):
        load_model_runner(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model.safetensors"):
        load_model_runner(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(ModelError, match="not an object"):
        load_model_runner(tmp_path)


@pytest.mark.parametrize(("dtype", "bytes_per_number"), [("float32", 4), ("bfloat16", 2)])
def test_kv_cache_fills_its_bytes(tmp_path: Path, dtype: str, bytes_per_number: int) -> None:
    """Keys and values of 3 layers with 2 heads of 16, 8 slots in a block."""
    block_bytes = 2 * 3 * 2 * 16 * 8 * bytes_per_number
    options = LoadOptions(dtype=dtype, block_size=8, kv_cache_bytes=10 * block_bytes + 5)
    capacity = load_model_runner(write_tiny_llama(tmp_path), options).capacity
    assert capacity.num_blocks == 10
    assert capacity.max_model_len == 1024
    assert capacity.vocab_size == 320


def test_max_model_len_is_at_most_the_models(tmp_path: Path) -> None:
    model_dir = write_tiny_llama(tmp_path)
    for asked, given in ((100, 100), (5000, 1024)):
        options = LoadOptions(num_blocks=4, max_model_len=asked)
        assert load_model_runner(model_dir, options).capacity.max_model_len == given


def test_too_small_a_cache(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="KV cache"):
        load_model_runner(write_tiny_llama(tmp_path), LoadOptions(kv_cache_bytes=100))


def test_too_large_a_cache(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="KV cache"):
        load_model_runner(write_tiny_llama(tmp_path), LoadOptions(num_blocks=1 << 50))


@pytest.mark.parametrize(
    ("saved", "loaded"),
    [("float32", torch.float32), ("float16", torch.bfloat16), ("bfloat16", torch.bfloat16)],
)
def test_auto_dtype(tmp_path: Path, saved: str, loaded: torch.dtype) -> None:
    model_dir = write_tiny_llama(tmp_path)
    change_config(model_dir, dtype=saved)
    model = load_model(model_dir)
    assert isinstance(model, LlamaModel)
    assert model.kv_cache_spec.dtype == loaded


@pytest.mark.parametrize(
    ("quantization", "dtype", "message"),
    [
        ("awq", "bfloat16", "'awq' is not one of none, int8, q4_1"),
        ("int8", "float32", "--quantization int8 computes in bfloat16: --dtype bfloat16"),
    ],
)
def test_a_quantization_that_can_not_be_had(
    tmp_path: Path, quantization: str, dtype: str, message: str
) -> None:
    options = LoadOptions(dtype=dtype, quantization=quantization)
    with pytest.raises(ModelError, match=message):
        load_model_runner(write_tiny_llama(tmp_path), options)


def test_the_hand_model_has_nothing_to_quantise(tmp_path: Path) -> None:
    write_hand_model(tmp_path)
    with pytest.raises(ModelError, match="q4_1: the hand model has no weights"):
        load_model_runner(tmp_path, LoadOptions(dtype="bfloat16", quantization="q4_1"))


def test_a_gpu_takes_no_quantization() -> None:
    with pytest.raises(ModelError, match="q4_1 runs on a CPU alone: --device cpu"):
        check_quantization("q4_1", torch.bfloat16, is_gpu=True)


def test_progress_is_reported(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    load_model_runner(
        write_tiny_llama(tmp_path),
        LoadOptions(num_blocks=4),
        lambda done, total: seen.append((done, total)),
    )
    assert seen == [(number, 29) for number in range(1, 30)]


def test_the_hand_model(tmp_path: Path) -> None:
    write_hand_model(tmp_path)
    capacity = load_model_runner(tmp_path, LoadOptions(num_blocks=4, block_size=4)).capacity
    assert (capacity.num_blocks, capacity.vocab_size) == (4, 259)
