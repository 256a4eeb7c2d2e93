"""Steps of a whole model on the GPU's path, interpreted where there is no GPU, against the CPU's.

Everything is in it: the one copy to the device, decodes filled up as for a recorded graph, mixed
batches, block copies and swaps, and the sampler.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import kernels.gpu
from executor_svc.drafts import NgramProposer
from executor_svc.gpu_kv_cache import GpuKVCache
from executor_svc.gpu_step import GpuStep
from executor_svc.kv_cache import KVCacheSpec
from executor_svc.model_loader import LoadPlace, build_model, load_model, read_model_config
from executor_svc.model_runner import ModelRunner
from segue.types import SamplingParams
from tests.executor_driver import GREEDY, ExecutorDriver
from tests.kernels.triton_device import DEVICE
from tests.runner_lane import RunnerLane
from tests.tiny_checkpoint import write_tiny_llama

BLOCKS = 64
SHAPE = {"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
SMALL = SHAPE | {"num_hidden_layers": 2, "intermediate_size": 48, "max_position_embeddings": 128}
PARAMS = {
    "greedy": GREEDY,
    "drawn": SamplingParams(seed=5, max_tokens=9, temperature=0.8, top_k=40),
    "penalized": SamplingParams(
        seed=2**63 + 1,
        max_tokens=9,
        temperature=1.1,
        min_p=0.01,
        repetition_penalty=1.3,
        frequency_penalty=0.4,
        logit_bias=((7, 2.0),),
        eos_token_id=3,
        min_tokens=4,
        num_logprobs=2,
    ),
}


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if DEVICE.type == "cpu":
        monkeypatch.setattr(kernels.gpu, "is_interpreted", True)
    yield
    kernels.gpu.set_batch_invariant(False)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "tiny", **SMALL)


def gpu_driver(tiny: Path, dtype: torch.dtype = torch.float32) -> ExecutorDriver:
    place = LoadPlace(dtype, DEVICE)
    driver = ExecutorDriver(build_model(tiny, read_model_config(tiny), place), BLOCKS)
    spec = driver.kv_cache.spec
    driver.kv_cache = GpuKVCache(spec, BLOCKS, 16, 4, DEVICE)
    step = GpuStep(driver.model, driver.kv_cache, DEVICE, max_context=128)
    driver.runner = ModelRunner(driver.model, driver.kv_cache, 0, device=step)
    return driver


def run(driver: ExecutorDriver) -> list[list[int]]:
    """A prefill in chunks beside a decode, then three decodes, which are filled up to four."""
    prompts = {"greedy": range(20, 38), "drawn": range(100, 104), "penalized": range(60, 62)}
    for name, prompt in prompts.items():
        driver.add(name, list(prompt), PARAMS[name])
    driver.step({"drawn": 4, "greedy": 5})
    driver.step({"greedy": 13, "drawn": 1, "penalized": 2})
    driver.decode(list(prompts), 2)
    return [driver.outputs(name) for name in prompts]


@pytest.mark.timeout(120)
def test_the_same_tokens(tiny: Path, on_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    got = gpu_driver(tiny)
    tokens = run(got)
    monkeypatch.setattr(kernels.gpu, "is_interpreted", False)
    expected = ExecutorDriver(load_model(tiny, "float32"), BLOCKS)
    assert tokens == run(expected)
    for key, logits in expected.logits.items():
        torch.testing.assert_close(got.logits[key].cpu(), logits, rtol=1e-3, atol=1e-4)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_deterministic(tiny: Path, on_gpu: None, dtype: torch.dtype) -> None:
    """A request alone, and beside another in other chunks, preempted and computed again: the same
    bits of its logits. In bfloat16 a step of decodes would have other tiles."""
    kernels.gpu.set_batch_invariant(True)
    alone, beside = gpu_driver(tiny, dtype), gpu_driver(tiny, dtype)
    prompt = list(range(30, 48))
    for driver in (alone, beside):
        driver.add("a", prompt)
    alone.prefill("a")
    alone.decode(["a"], 4)
    beside.add("b", list(range(80, 83)))
    beside.step({"b": 3, "a": 7})
    beside.step({"a": 11, "b": 1})
    beside.decode(["b", "a"], 2)
    beside.preempt("a")
    beside.decode(["b"], 1)
    beside.step({"a": 16, "b": 1})
    beside.prefill("a")
    beside.decode(["b", "a"], 1)
    assert alone.outputs("a") == beside.outputs("a")
    for index in range(5):
        assert torch.equal(alone.logits["a", index], beside.logits["a", index])


@pytest.mark.timeout(120)
def test_drafts_change_no_text(tiny: Path, on_gpu: None) -> None:
    texts: list[dict[str, list[int]]] = []
    for num_drafts in (0, 3):
        driver = gpu_driver(tiny)
        step = GpuStep(driver.model, driver.kv_cache, DEVICE, max_context=128)
        proposer = NgramProposer() if num_drafts else None
        runner = ModelRunner(driver.model, driver.kv_cache, 128, proposer, step)
        lane = RunnerLane(runner, num_spec_tokens=num_drafts)
        for name, params in PARAMS.items():
            biased = replace(params, logit_bias=((9, 6.0),), max_tokens=8)
            lane.add(name, [9, 9, 9, 5, 9, 9, 9], biased)
        lane.run()
        texts.append(lane.outputs())
    assert texts[0] == texts[1]
    assert runner.num_accepted_draft_tokens > 0


def test_swaps_and_copies(on_gpu: None) -> None:
    cache = GpuKVCache(KVCacheSpec(2, 1, 8, torch.float32), 6, 16, 3, DEVICE)
    cache.key(1)[4], cache.value(0)[4], cache.key(0)[2] = 1.5, 2.5, 3.5
    cache.swap_out([(4, 2), (2, 0)])
    cache.key(1)[4] = cache.value(0)[4] = 0.0
    cache.swap_in([(2, 1), (0, 5)])
    cache.copy([(1, 3)])
    assert cache.key(1)[3].unique().tolist() == [1.5]
    assert cache.value(0)[1].unique().tolist() == [2.5]
    assert cache.key(0)[5].unique().tolist() == [3.5]
    with pytest.raises(ValueError, match="no block 9"):
        cache.copy([(0, 9)])
