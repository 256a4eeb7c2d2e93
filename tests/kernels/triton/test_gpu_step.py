"""What a step on the GPU's path records, copies and waits for, as far as a CPU can tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import kernels.gpu
from executor_svc.gpu_kv_cache import GpuKVCache
from executor_svc.gpu_step import GpuStep
from executor_svc.model_loader import LoadPlace, build_model, read_model_config
from executor_svc.model_runner import ModelRunner
from executor_svc.step_buffer import Arrays, StepBuffer
from tests.executor_driver import ExecutorDriver
from tests.kernels.triton_device import DEVICE
from tests.tiny_checkpoint import write_tiny_llama

BLOCKS = 64
SHAPE = {"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
SMALL = SHAPE | {"num_hidden_layers": 1, "intermediate_size": 48, "max_position_embeddings": 128}
PROMPTS = {"a": [5, 6, 7], "b": [8, 9], "c": [10]}
# Their result is a number that the host has to have, or a size that it has to know.
WAITS = {"item", "_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "_unique2"}
WAITS |= {"bincount", "equal"}


class CountedBuffer(StepBuffer):
    num_uploads = 0

    def upload(self, arrays: Arrays) -> dict[str, torch.Tensor]:
        self.num_uploads += 1
        return super().upload(arrays)


class CountedStep(GpuStep):
    def __init__(self, *arguments: Any, buffer_bytes: int) -> None:
        super().__init__(*arguments)
        self.buffer = self._buffer = CountedBuffer(DEVICE, buffer_bytes)
        self.recorded: list[int] = []

    def _record(self, size: int, inputs: dict[str, torch.Tensor]) -> Any:
        self.recorded.append(size)
        return super()._record(size, inputs)


class NoWaits(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert str(func).split(".")[1] not in WAITS, func
        return func(*args, **(kwargs or {}))


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE.type == "cpu":
        monkeypatch.setattr(kernels.gpu, "is_interpreted", True)


def prefilled(tmp_path: Path, buffer_bytes: int) -> tuple[ExecutorDriver, CountedStep]:
    tiny = write_tiny_llama(tmp_path / "tiny", **SMALL)
    model = build_model(tiny, read_model_config(tiny), LoadPlace(torch.float32, DEVICE))
    driver = ExecutorDriver(model, BLOCKS)
    driver.kv_cache = GpuKVCache(driver.kv_cache.spec, BLOCKS, 16, 0, DEVICE)
    step = CountedStep(driver.model, driver.kv_cache, DEVICE, 128, buffer_bytes=buffer_bytes)
    driver.runner = ModelRunner(driver.model, driver.kv_cache, 0, device=step)
    for name, prompt in PROMPTS.items():
        driver.add(name, prompt)
    driver.step({name: len(prompt) for name, prompt in PROMPTS.items()})
    return driver, step


def test_one_copy_and_no_wait(tmp_path: Path, on_gpu: None) -> None:
    """But for the sampled ids, which a CPU does not see waited for."""
    driver, step = prefilled(tmp_path, 1 << 16)
    for names in (["a", "b", "c"], ["b"]):
        plan, before = driver.plan(dict.fromkeys(names, 1)), step.buffer.num_uploads
        with NoWaits():
            driver.runner.execute(plan)
        assert step.buffer.num_uploads == before + 1


def test_a_size_is_recorded_once(tmp_path: Path, on_gpu: None) -> None:
    driver, step = prefilled(tmp_path, 1 << 16)
    for names in (["a", "b", "c"], ["a", "b"], ["c", "b", "a"], ["b", "c"]):
        driver.decode(names, 1)
    assert step.recorded == [4, 2]


def test_a_buffer_that_has_grown_is_recorded_anew(tmp_path: Path, on_gpu: None) -> None:
    roomy, _ = prefilled(tmp_path, 1 << 16)
    driver, step = prefilled(tmp_path, 1 << 16)
    driver.decode(list(PROMPTS), 1)
    step.buffer._allocate(step.buffer.num_bytes)  # pyright: ignore[reportPrivateUsage]
    driver.decode(list(PROMPTS), 2)
    assert step.recorded == [4, 4]
    roomy.decode(list(PROMPTS), 3)
    assert [driver.outputs(name) for name in PROMPTS] == [roomy.outputs(name) for name in PROMPTS]
