"""Under heavy pressure every request has the text of an undisturbed run, swapped or recomputed.

The scheduler decides, the executor copies: what comes back from the CPU has the bits that went out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from executor_svc.model_loader import LoadOptions, load_model, load_model_runner
from scheduler_svc.core.three_queue.config import ThreeQueueConfig
from segue.model_files.hand import write_hand_model
from segue.types import FinishReason, SamplingParams
from tests.runner_lane import RunnerLane
from tests.tiny_checkpoint import write_tiny_llama

NUM_REQUESTS = 6
PARAMS = SamplingParams(seed=3, max_tokens=50, temperature=0.0)
NUM_BLOCKS = 26  # of 8 slots: room for two of the requests, when they are long
ENOUGH, SCARCE, NONE = 200, 12, 0  # CPU blocks


@pytest.fixture(scope="module", params=["hand", "llama", "llama_bfloat16"])
def model_dir(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp(request.param) / "model"
    if request.param == "hand":
        write_hand_model(path)
    else:
        write_tiny_llama(path, dtype=request.param.partition("_")[2] or "float32")
    yield path
    torch.set_num_threads(threads)


def lane(
    model_dir: Path, mode: str, num_blocks: int, num_cpu_blocks: int, *, chunks: bool = False
) -> RunnerLane:
    options = LoadOptions(num_blocks=num_blocks, num_cpu_blocks=num_cpu_blocks, block_size=8)
    config = ThreeQueueConfig(
        block_size=8,
        max_num_seqs=NUM_REQUESTS,
        max_num_batched_tokens=32 if chunks else 128,
        max_model_len=120,
        preemption_mode=mode,
        enable_chunked_prefill=chunks,
    )
    made = RunnerLane(load_model_runner(model_dir, options), config)
    for index in range(NUM_REQUESTS):
        params = replace(PARAMS, seed=index, temperature=float(index % 2))
        made.add(f"r{index}", list(range(5 + index, 40 + index)), params)
    made.run()
    assert {request.finish.reason for request in made.requests.values() if request.finish} == {
        FinishReason.LENGTH
    }
    return made


@pytest.fixture(scope="module")
def undisturbed(model_dir: Path) -> dict[str, list[int]]:
    made = lane(model_dir, "recompute", num_blocks=200, num_cpu_blocks=NONE)
    assert made.num_preemptions == 0
    return made.outputs()


@pytest.mark.parametrize("chunks", [False, True])
@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_text_under_pressure(
    model_dir: Path, undisturbed: dict[str, list[int]], mode: str, *, chunks: bool
) -> None:
    made = lane(model_dir, mode, NUM_BLOCKS, ENOUGH, chunks=chunks)
    assert made.outputs() == undisturbed
    assert made.num_preemptions > 2


def test_a_swapped_request_computes_nothing_again(model_dir: Path) -> None:
    made = lane(model_dir, "swap", NUM_BLOCKS, ENOUGH)
    assert made.num_blocks_swapped["out"] == made.num_blocks_swapped["in"] > 10
    assert made.runner.num_positions_recomputed == 0


@pytest.mark.parametrize("num_cpu_blocks", [SCARCE, NONE])
def test_without_room_to_swap_to_it_is_recomputed(
    model_dir: Path, undisturbed: dict[str, list[int]], num_cpu_blocks: int
) -> None:
    """Never aborted, as V0 does; each request has its text."""
    made = lane(model_dir, "swap", NUM_BLOCKS, num_cpu_blocks)
    assert made.outputs() == undisturbed
    assert made.runner.num_positions_recomputed > 0
    assert (made.num_blocks_swapped["out"] > 0) == (num_cpu_blocks > 0)


def test_swap_space_in_bytes(model_dir: Path) -> None:
    bytes_per_block = load_model(model_dir).kv_cache_spec.bytes_per_block(8)
    options = LoadOptions(num_blocks=8, block_size=8, swap_space_bytes=5 * bytes_per_block + 1)
    assert load_model_runner(model_dir, options).capacity.num_cpu_blocks == 5
