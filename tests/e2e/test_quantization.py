"""`segue serve --quantization`: the demo model answers, and no other weights go on with that."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import openai
import pytest

from kernels.grouped_weight import METHODS
from segue.model_files.demo_model import ensure_demo_model
from tests.served import Served


@pytest.mark.parametrize("quantization", METHODS)
def test_the_demo_model_knows_its_capital(quantization: str, tmp_path: Path) -> None:
    model_dir, state_dir = ensure_demo_model(), tmp_path / "state"
    served = Served(model_dir, state_dir, ["--quantization", quantization, "--num-blocks", "100"])
    try:
        client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="none")
        answer = client.completions.create(
            model=served.model, prompt="The capital of France is", max_tokens=4, temperature=0
        )
    finally:
        served.stop()
    assert answer.choices[0].text.startswith(" Paris.")

    command = [sys.executable, "-m", "segue", "serve", "--model", str(model_dir), "--port", "0"]
    done = subprocess.run(
        [*command, "--state-dir", str(state_dir)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert f"the state is of another quantization ({quantization}, now none)" in done.stderr
