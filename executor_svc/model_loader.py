"""From a model directory to a model runner: reads config.json and picks from the registry.

Knows the Hugging Face layout, no service and no stream. Invariant: everything comes from the
directory; nothing is fetched.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import kernels
from executor_svc.cache_population import populate_in_background
from executor_svc.compute_device import ComputeDevice, choose_device
from executor_svc.draft_model import DraftModel
from executor_svc.drafts import NgramProposer
from executor_svc.gpu_kv_cache import GpuKVCache
from executor_svc.gpu_step import GpuStep
from executor_svc.kv_cache import KVCache
from executor_svc.model_runner import ModelRunner
from executor_svc.models.causal_lm import CausalLM
from executor_svc.models.decoder_config import ARCHITECTURES
from executor_svc.models.hand import HandModel
from executor_svc.models.llama import build_llama
from executor_svc.quantization import NONE, check_quantization
from executor_svc.self_check import check_bit_exactness
from executor_svc.weights import ModelError, RandomWeights, ReportProgress, Weights
from kernels.gpu import on_gpu

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
DEFAULT_BLOCK_SIZE = 16
DEFAULT_KV_CACHE_BYTES = 1 << 30
SPECULATIVE_METHODS = ("ngram", "draft_model")
MAX_NUM_BLOCKS = 1 << 17  # the scheduler keeps a row for each: enough for 2 million tokens

ModelConfig = dict[str, Any]


@dataclass(slots=True, frozen=True)
class LoadOptions:
    """How a model is to be held. `num_blocks` None: as many as fit into kv_cache_bytes."""

    dtype: str = "auto"
    block_size: int = DEFAULT_BLOCK_SIZE
    kv_cache_bytes: int = DEFAULT_KV_CACHE_BYTES
    num_blocks: int | None = None
    num_cpu_blocks: int = 0
    swap_space_bytes: int = 0  # instead of num_cpu_blocks
    max_model_len: int = 0  # 0: the model's own
    num_threads: int = 0  # 0: torch's choice, the number of cores
    populates_cache: bool = False  # the KV cache's memory is asked for now, not at first use
    speculative_method: str = ""  # "": none
    draft_model: Path | None = None
    device: str = "auto"
    gpu_memory_utilization: float = 0.9
    is_deterministic: bool = False  # on a GPU; a CPU always is
    load_format: str = "auto"
    quantization: str = NONE


@dataclass(slots=True, frozen=True)
class LoadPlace:
    """`dtype` and where the weights go; `is_random`: none are read."""

    dtype: torch.dtype
    device: torch.device
    is_random: bool = False
    quantization: str = NONE


def _build_hand_model(
    model_dir: Path, config: ModelConfig, place: LoadPlace, report: ReportProgress | None
) -> CausalLM:
    if on_gpu(torch.empty(0, device=place.device)):
        raise ModelError("the hand model runs on a CPU alone: --device cpu")
    if place.quantization != NONE:
        raise ModelError(f"--quantization {place.quantization}: the hand model has no weights")
    return HandModel(
        vocab_size=int(config.get("vocab_size", 259)),
        max_model_len=int(config.get("max_position_embeddings", 0)),
    )


def _build_llama(
    model_dir: Path, config: ModelConfig, place: LoadPlace, report: ReportProgress | None
) -> CausalLM:
    if place.is_random:
        weights: Weights = RandomWeights(place.dtype, place.device)
    else:
        weights = Weights(model_dir, place.dtype, report, place.device)
    return build_llama(config, weights, place.dtype, place.quantization)


BuildModel = Callable[[Path, ModelConfig, LoadPlace, ReportProgress | None], CausalLM]
# By config.json's model_type.
MODEL_REGISTRY: dict[str, BuildModel] = {
    "segue_hand": _build_hand_model,
    **dict.fromkeys(ARCHITECTURES, _build_llama),
}


def load_model_runner(
    model_dir: str | Path,
    options: LoadOptions | None = None,
    report_progress: ReportProgress | None = None,
) -> ModelRunner:
    """Loads the model and allocates its KV cache. Raises ModelError with a readable line."""
    options = options or LoadOptions()
    kernels.set_num_threads(options.num_threads or torch.get_num_threads())
    device = choose_device(options.device)
    kernels.set_batch_invariant(options.is_deterministic)
    config = read_model_config(Path(model_dir))
    dtype, is_random = _torch_dtype(options.dtype, config), _is_random(options.load_format)
    check_quantization(options.quantization, dtype, is_gpu=device.is_gpu)
    place = LoadPlace(dtype, device.torch_device, is_random, options.quantization)
    model = build_model(Path(model_dir), config, place, report_progress)
    if device.is_gpu and options.draft_model is not None:
        raise ModelError("--draft-model runs on a CPU alone: --device cpu, or ngram for a GPU")
    if not device.is_gpu:
        check_bit_exactness(model, options.block_size)
    draft_model = _load_draft_model(options, model)
    models = [model] if draft_model is None else [model, draft_model]
    bytes_per_block = sum(m.kv_cache_spec.bytes_per_block(options.block_size) for m in models)
    cache_bytes = device.cache_bytes(options.gpu_memory_utilization, options.kv_cache_bytes)
    options = replace(
        options,
        num_blocks=_num_blocks(options.num_blocks, cache_bytes, bytes_per_block),
        num_cpu_blocks=_num_blocks(
            options.num_cpu_blocks or None, options.swap_space_bytes, bytes_per_block
        ),
    )
    proposer = NgramProposer() if options.speculative_method == "ngram" else None
    if draft_model is not None:
        proposer = DraftModel(draft_model, _kv_cache(draft_model, options))
    kv_cache = _kv_cache(model, options, device)
    step = _gpu_step(model, kv_cache, device, options.max_model_len) if device.is_gpu else None
    if not device.is_gpu and all(p.native is not None for p in model.products().values()):
        kernels.leave_threads_to_native()
    if options.populates_cache and not device.is_gpu:
        populate_in_background(kv_cache)
    return ModelRunner(model, kv_cache, options.max_model_len, proposer, step)


def _gpu_step(
    model: CausalLM, kv_cache: KVCache, device: ComputeDevice, max_model_len: int
) -> GpuStep:
    limits = [limit for limit in (max_model_len, model.max_model_len) if limit]
    longest = min(limits, default=kv_cache.num_blocks * kv_cache.block_size)
    return GpuStep(model, kv_cache, device.torch_device, longest)


def _num_blocks(asked: int | None, num_bytes: int, bytes_per_block: int) -> int:
    if asked is not None:
        return asked
    return min(num_bytes // bytes_per_block, MAX_NUM_BLOCKS)


def _kv_cache(
    model: CausalLM, options: LoadOptions, device: ComputeDevice | None = None
) -> KVCache:
    assert options.num_blocks is not None
    spec = model.kv_cache_spec
    sizes = (spec, options.num_blocks, options.block_size, options.num_cpu_blocks)
    try:
        if device is not None and device.is_gpu:
            return GpuKVCache(*sizes, device.torch_device)
        return KVCache(*sizes)
    except (MemoryError, ValueError) as error:  # too few blocks, or too many for the memory
        raise ModelError(f"the KV cache: {error}") from error


def _load_draft_model(options: LoadOptions, model: CausalLM) -> CausalLM | None:
    method, path = options.speculative_method, options.draft_model
    if method and method not in SPECULATIVE_METHODS:
        known = ", ".join(SPECULATIVE_METHODS)
        raise ModelError(f"--speculative-method: {method!r} is not one of {known}")
    if (method == "draft_model") != (path is not None):
        raise ModelError("--speculative-method draft_model and --draft-model need each other")
    if path is None:
        return None
    draft_model = load_model(path, options.dtype)
    if draft_model.vocab_size != model.vocab_size:
        raise ModelError(
            f"--draft-model: its vocabulary of {draft_model.vocab_size} is not the model's, "
            f"of {model.vocab_size}"
        )
    return draft_model


def load_model(model_dir: Path, dtype: str = "auto", quantization: str = NONE) -> CausalLM:
    """On the CPU."""
    config = read_model_config(model_dir)
    place = LoadPlace(_torch_dtype(dtype, config), torch.device("cpu"), quantization=quantization)
    check_quantization(quantization, place.dtype, is_gpu=False)
    return build_model(model_dir, config, place)


def build_model(
    model_dir: Path, config: ModelConfig, place: LoadPlace, report: ReportProgress | None = None
) -> CausalLM:
    model_type = str(config.get("model_type", ""))
    build = MODEL_REGISTRY.get(model_type)
    if build is None:
        known = ", ".join(sorted(MODEL_REGISTRY))
        raise ModelError(f"{model_dir}: model_type {model_type!r} is not one of {known}")
    return build(model_dir, config, place, report)


def _is_random(load_format: str) -> bool:
    if load_format not in ("auto", "dummy"):
        raise ModelError(f"load format {load_format!r} is not one of auto, dummy")
    return load_format == "dummy"


def read_model_config(model_dir: Path) -> ModelConfig:
    path = model_dir / "config.json"
    try:
        config = json.loads(path.read_text())
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ModelError(f"{path}: {error}") from error
    if not isinstance(config, dict):
        raise ModelError(f"{path}: not an object")
    return config


def _torch_dtype(dtype: str, config: ModelConfig) -> torch.dtype:
    """`auto`: what the weights were saved in, and bfloat16 for float16, which CPUs are slow at."""
    if dtype == "auto":
        saved = str(config.get("dtype") or config.get("torch_dtype") or "float32")
        dtype = "bfloat16" if saved == "float16" else saved
    if dtype not in DTYPES:
        raise ModelError(f"dtype {dtype!r} is not one of auto, {', '.join(sorted(DTYPES))}")
    return DTYPES[dtype]
