"""The bar that shows how far the model's weights are read.

Knows a terminal's carriage returns, no model. Invariant: it ends with a line of its own, so that
what is logged next begins a new one.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from tqdm import tqdm


class LoadProgress:
    """Use as a context; call it with (tensors read, tensors in all)."""

    def __init__(self, model: Path) -> None:
        self._model = model
        self._bar: tqdm[Any] | None = None  # where nothing is read, an error is the only line

    def __enter__(self) -> LoadProgress:
        return self

    def __call__(self, num_read: int, num_tensors: int) -> None:
        if self._bar is None:
            name = f"loading {self._model.name}"
            self._bar = tqdm(desc=name, unit="tensors", file=sys.stderr, mininterval=0.1)
        self._bar.total = num_tensors
        self._bar.update(num_read - self._bar.n)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()
