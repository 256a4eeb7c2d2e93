"""From a model directory to a model runner: reads config.json and picks from the registry.

Knows the Hugging Face layout, no service and no stream. Invariant: everything comes from the
directory; nothing is fetched.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import kernels
from executor_svc.kv_cache import KVCache
from executor_svc.model_runner import ModelRunner
from executor_svc.models.causal_lm import CausalLM
from executor_svc.models.decoder_config import ARCHITECTURES
from executor_svc.models.hand import HandModel
from executor_svc.models.llama import build_llama
from executor_svc.self_check import check_bit_exactness
from executor_svc.weights import ModelError, ReportProgress, Weights

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
DEFAULT_BLOCK_SIZE = 16
DEFAULT_KV_CACHE_BYTES = 1 << 30
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
    max_model_len: int = 0  # 0: the model's own
    num_threads: int = 0  # 0: torch's choice, the number of cores


def _build_hand_model(
    model_dir: Path, config: ModelConfig, dtype: torch.dtype, report: ReportProgress | None
) -> CausalLM:
    return HandModel(
        vocab_size=int(config.get("vocab_size", 259)),
        max_model_len=int(config.get("max_position_embeddings", 0)),
    )


def _build_llama(
    model_dir: Path, config: ModelConfig, dtype: torch.dtype, report: ReportProgress | None
) -> CausalLM:
    return build_llama(config, Weights(model_dir, dtype, report), dtype)


BuildModel = Callable[[Path, ModelConfig, torch.dtype, ReportProgress | None], CausalLM]
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
    model = load_model(Path(model_dir), options.dtype, report_progress)
    check_bit_exactness(model, options.block_size)
    num_blocks = options.num_blocks
    if num_blocks is None:
        bytes_per_block = model.kv_cache_spec.bytes_per_block(options.block_size)
        num_blocks = min(options.kv_cache_bytes // bytes_per_block, MAX_NUM_BLOCKS)
    try:
        kv_cache = KVCache(
            model.kv_cache_spec, num_blocks, options.block_size, options.num_cpu_blocks
        )
    except (MemoryError, ValueError) as error:  # too few blocks, or too many for the memory
        raise ModelError(f"the KV cache: {error}") from error
    return ModelRunner(model, kv_cache, options.max_model_len)


def load_model(
    model_dir: Path, dtype: str = "auto", report_progress: ReportProgress | None = None
) -> CausalLM:
    config = read_model_config(model_dir)
    model_type = str(config.get("model_type", ""))
    build = MODEL_REGISTRY.get(model_type)
    if build is None:
        known = ", ".join(sorted(MODEL_REGISTRY))
        raise ModelError(f"{model_dir}: model_type {model_type!r} is not one of {known}")
    return build(model_dir, config, _torch_dtype(dtype, config), report_progress)


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
