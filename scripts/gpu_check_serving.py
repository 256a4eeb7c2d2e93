"""Serves a model of random weights for `gpu_check.py`, as `segue serve` does, and loads it.

Knows the bench's closed loop and the services' /metrics. Invariant: the model directory it writes
holds no weights; what is served is as large as Llama-3-8B and says nothing.
"""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from segue.model_files.hand import write_hand_model
from tests.bench.bench_serving import figures
from tests.bench.closed_loop import Load, run_closed_loop
from tests.bench.served_counters import Counters
from tests.served import Served

LLAMA_3_8B = {
    "model_type": "llama",
    "vocab_size": 128_256,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}
TINY = LLAMA_3_8B | {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 256,
    "dtype": "float32",
}
# Until a step is launched; what follows waits for the device, and spins while it does.
HOST_SECONDS = re.compile(
    r'^segue:executor_phase_seconds_total\{.*phase="(?:prepare|forward)".*\} (\S+)', re.MULTILINE
)
COLUMNS = {
    "streams": "streams",
    "tokens_per_s": "tokens/s",
    "ttft_ms_p50": "ttft ms",
    "itl_ms_p50": "itl ms",
    "executor_step_ms": "step ms",
    "executor_idle_percent": "idle %",
}


def write_random_model(directory: Path, config: dict[str, Any]) -> Path:
    """With a tokenizer of bytes, and a word for every other id, so that all ids are text."""
    write_hand_model(directory)
    (directory / "config.json").write_text(json.dumps(config))
    path = directory / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocab = tokenizer["model"]["vocab"]
    first = max(*vocab.values(), *(token["id"] for token in tokenizer["added_tokens"])) + 1
    vocab |= {f"t{token_id}": token_id for token_id in range(first, config["vocab_size"])}
    path.write_text(json.dumps(tokenizer))
    return directory


def measure_serving(is_smoke: bool, seconds: float) -> list[dict[str, Any]]:
    """A row for each number of streams that there is time for."""
    deadline = time.monotonic() + seconds
    config = TINY if is_smoke else LLAMA_3_8B
    flags = ["--device", "cuda", "--load-format", "dummy"]
    flags += ["--num-blocks", "32"] if is_smoke else []
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="segue-gpu-check-") as name:
        model = write_random_model(Path(name) / "model", config)
        served = Served(model, Path(name) / "state", flags, environ={})
        try:
            vocab_size = config["vocab_size"]
            tokens = (6, 3) if is_smoke else (512, 256)
            for streams in (1, 2) if is_smoke else (1, 8, 64, 256):
                load = Load(served.model, vocab_size, streams, 1, *tokens)
                if time.monotonic() > deadline:
                    break
                if not rows:  # kernels are compiled and graphs recorded
                    asyncio.run(run_closed_loop(served.url, load, seed=1))
                rows.append(_measure(served, load))
        finally:
            served.stop()
    return rows


def _measure(served: Served, load: Load) -> dict[str, Any]:
    before, host_before = Counters.read(served), _host_seconds(served)
    result = asyncio.run(run_closed_loop(served.url, load, seed=2 + load.num_streams))
    after, host_s = Counters.read(served), _host_seconds(served) - host_before
    found = figures(load, result, before, after)
    num_steps = after.executor_since(before)["segue:executor_steps_total"]
    row = {title: found[name] for name, title in COLUMNS.items()}
    row["scheduler us per step"] = sum(found["scheduler_us_per_step"].values())
    row["executor host ms per step"] = round(1000 * host_s / num_steps, 2)
    row["executor CPU ms per step"] = found["cpu_ms_per_step"].get("executor-0", "")
    return row


def _host_seconds(served: Served) -> float:
    with urllib.request.urlopen(served.metrics_url("executor-0"), timeout=5) as response:
        return sum(float(value) for value in HOST_SECONDS.findall(response.read().decode()))
