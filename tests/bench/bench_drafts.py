"""Drafts on a text with repetition: how many are accepted, and what a token costs with and without.

`python -m tests.bench.bench_drafts [--model DIR] [--draft-model DIR] [--tokens N] [--json FILE]`
The production scheduler and model runner in one process, without gateway, Redis and gRPC. Times are
CPU time, since a shared machine says little by the clock. It fails if drafts change a text.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from executor_svc.model_loader import LoadOptions, load_model_runner
from segue.model_files.demo_model import SMOLLM2_135M, cache_dir
from segue.types import SamplingParams
from tests.runner_lane import RunnerLane

TEXT = (
    "Here is the list of our orders, one on each line.\n"
    + "".join(
        f'{{"order": {number}, "customer": "Miller and Sons", "status": "delivered", '
        '"warehouse": "Rotterdam"}\n'
        for number in range(101, 108)
    )
    + "The same list again, without any change:\n"
)
NUM_DRAFTS = (0, 2, 4, 8)
GREEDY = SamplingParams(seed=5, max_tokens=1, temperature=0.0)
COLUMNS = ("method", "streams", "sampling", "drafts", "accepted", "steps", "cpu_ms_per_token")


def measure(
    options: LoadOptions, model: Path, num_drafts: int, params: SamplingParams, num_streams: int
) -> tuple[dict[str, Any], dict[str, list[int]]]:
    runner = load_model_runner(model, options)
    lane = RunnerLane(
        runner, num_spec_tokens=num_drafts, max_model_len=4096, max_num_batched_tokens=2048
    )
    tokens = Tokenizer.from_file(str(model / "tokenizer.json")).encode(TEXT).ids
    for stream in range(num_streams):
        lane.add(f"s{stream}", tokens[stream:], replace(params, seed=stream))
    start = time.process_time()
    lane.run(max_steps=100_000)
    spent = time.process_time() - start
    drafted, accepted = runner.num_draft_tokens, runner.num_accepted_draft_tokens
    num_tokens = sum(len(output) for output in lane.outputs().values())
    figures = {
        "method": options.speculative_method or "none",
        "streams": num_streams,
        "sampling": "greedy" if params.temperature == 0.0 else f"T={params.temperature:g}",
        "drafts": num_drafts,
        "accepted": f"{100 * accepted / drafted:.0f} %" if drafted else "-",
        "steps": lane.num_steps,
        "cpu_ms_per_token": round(1000 * spent / num_tokens, 2),
    }
    return figures, lane.outputs()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=cache_dir() / "models" / SMOLLM2_135M.name)
    parser.add_argument("--draft-model", type=Path)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    method = "draft_model" if args.draft_model else "ngram"
    rows: list[dict[str, Any]] = []
    for num_streams in (1, 4):
        for temperature in (0.0, 1.0):
            params = replace(GREEDY, max_tokens=args.tokens, temperature=temperature)
            texts: list[dict[str, list[int]]] = []
            for num_drafts in NUM_DRAFTS:
                options = LoadOptions(num_blocks=1000, num_threads=1)
                if num_drafts:
                    options = replace(
                        options, speculative_method=method, draft_model=args.draft_model
                    )
                figures, text = measure(options, args.model, num_drafts, params, num_streams)
                texts.append(text)
                rows.append(figures)
                print("  ".join(f"{name} {figures[name]}" for name in COLUMNS), flush=True)
                assert text == texts[0], "a text is another with drafts"
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
