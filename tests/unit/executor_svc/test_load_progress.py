"""The bar that `segue serve` shows while an executor reads its weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from executor_svc.load_progress import LoadProgress
from executor_svc.model_loader import LoadOptions, load_model_runner
from tests.tiny_checkpoint import write_tiny_llama


def test_shows_every_tensor_and_ends_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_tiny_llama(tmp_path / "tiny", tie_word_embeddings=False)
    with LoadProgress(model) as progress:
        load_model_runner(model, LoadOptions(num_blocks=4), progress)
    shown = capsys.readouterr().err
    last = shown.rstrip("\n").rpartition("\r")[2]
    assert last.startswith("loading tiny: 100%")
    assert "30/30" in last  # three layers of nine, and embedding, norm and head
    assert shown.endswith("\n")
