"""Reads named tensors from a directory of safetensors files, whole or split by an index.

Knows Hugging Face's file layout, no model. Invariant: a missing tensor is an error that names it;
nothing is filled in.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
RANDOM_SEED = 20

ReportProgress = Callable[[int, int], None]  # tensors read, tensors in all


class ModelError(ValueError):
    """The directory holds no model that this executor can serve."""


class Weights:
    """Tensors are read when they are asked for, in the dtype that is asked for."""

    def __init__(
        self,
        model_dir: Path,
        dtype: torch.dtype,
        report_progress: ReportProgress | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.device = torch.device(device)
        self._dtype = dtype
        self._report_progress = report_progress
        self._num_read = 0
        self._file_of = _tensor_files(model_dir)
        # Opened once: a mixture of experts has thousands of tensors, and an open reads all names.
        self._opened: dict[Path, Any] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        path = self._file_of.get(name)
        if path is None:
            raise ModelError(f"the weights have no tensor {name}")
        if path not in self._opened:
            self._opened[path] = safe_open(path, framework="pt")
        tensor: torch.Tensor = self._opened[path].get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise ModelError(f"{name} is {tuple(tensor.shape)}, and config.json makes it {shape}")
        self._num_read += 1
        if self._report_progress is not None:
            self._report_progress(self._num_read, len(self._file_of))
        return tensor.to(self.device, self._dtype)


class RandomWeights(Weights):
    """Whatever is asked for, of noise: to measure with the shapes of a model that is not here."""

    def __init__(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self._dtype = dtype
        self._generator = torch.Generator(self.device).manual_seed(RANDOM_SEED)

    def __contains__(self, name: str) -> bool:
        return True

    def get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if len(shape) == 1:
            return torch.ones(shape, dtype=self._dtype, device=self.device)
        noise = torch.empty(shape, dtype=self._dtype, device=self.device)
        return noise.normal_(0.0, shape[-1] ** -0.5, generator=self._generator)


def _tensor_files(model_dir: Path) -> dict[str, Path]:
    index_path = model_dir / INDEX_FILE
    if index_path.exists():
        index = json.loads(index_path.read_text())
        paths = {model_dir / file for file in index["weight_map"].values()}
    else:
        paths = {model_dir / WEIGHTS_FILE}
    file_of: dict[str, Path] = {}
    for path in sorted(paths):
        try:
            with safe_open(path, framework="pt") as file:
                file_of.update(dict.fromkeys(file.keys(), path))
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{path}: {error}") from error
    return file_of
