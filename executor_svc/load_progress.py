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
        self._bar: tqdm[Any] = tqdm(
            desc=f"loading {model.name}", unit="tensors", total=0, file=sys.stderr, mininterval=0.1
        )

    def __enter__(self) -> LoadProgress:
        return self

    def __call__(self, num_read: int, num_tensors: int) -> None:
        self._bar.total = num_tensors
        self._bar.update(num_read - self._bar.n)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.close()
