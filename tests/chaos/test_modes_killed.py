"""Kill the scheduler and the executor while requests are swapped out and a step waits that swaps,
and while drafts are in flight: the clients see what they see of a plain serve that nobody disturbs.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.kills import Metrics, with_kills
from tests.chaos.step_gate import StepGate
from tests.chaos.streams import Stream, Streams, asks, undisturbed
from tests.served import ONE_THREAD, Served, wait_until

MOST_STEPS = 30  # of up to 4 tokens for a stream, which has to be open at the last kill
ASKED = asks(8, max_tokens=150)
# All prompts fit, and the third block of each request does not: swapping begins with the decodes.
SWAP = ["--policy", "three_queue", "--preemption-mode", "swap", "--num-blocks", "20"]
# Blocks of 16 slots with a key and a value of 4 bytes: room for about half of what is swapped out
# at the worst, so that some are recomputed instead.
SWAP += ["--swap-space-bytes", str(24 * 16 * 8)]


@pytest.fixture(scope="module")
def expected(hand_model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Stream]:
    """Of a serve without drafts, with enough memory."""
    served = Served(hand_model, tmp_path_factory.mktemp("plain") / "state")
    try:
        return asyncio.run(undisturbed(served, ASKED))
    finally:
        served.stop()


@pytest.fixture(scope="module", params=["swap", "draft_model", "ngram"])
def mode(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def served(
    mode: str,
    hand_model: Path,
    gate: StepGate,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Served]:
    flags = {
        "swap": SWAP,
        "ngram": ["--speculative-method", "ngram", "--num-speculative-tokens", "3"],
        "draft_model": [
            *("--speculative-method", "draft_model", "--num-speculative-tokens", "2"),
            *("--draft-model", str(hand_model)),
        ],
    }[mode]
    state_dir = tmp_path_factory.mktemp("serve") / "state"
    running = Served(hand_model, state_dir, flags, ONE_THREAD | gate.environ)
    yield running
    running.stop()
    print(running.log()[-20_000:])  # shown where the test failed


def assert_same(streams: list[Stream], expected: list[Stream]) -> None:
    assert [s.token_ids for s in streams] == [s.token_ids for s in expected]
    assert [s.finish_reason for s in streams] == [s.finish_reason for s in expected]


async def test_undisturbed(served: Served, expected: list[Stream]) -> None:
    """The mode alone changes nothing, and it was at work."""
    before = _swaps_and_drafts(served)
    assert_same(await undisturbed(served, ASKED), expected)
    assert _swaps_and_drafts(served) > before


def _swaps_and_drafts(served: Served) -> float:
    counts = served.metrics("scheduler-0")
    swaps = sum(value for name, value in counts.items() if name.startswith("segue:swapped_blocks"))
    return swaps + counts.get("vllm:spec_decode_num_draft_tokens_total", 0.0)


@pytest.mark.parametrize(
    ("names", "num_kills"),
    [(["scheduler-0"], 3), (["executor-0"], 1), (["scheduler-0", "executor-0"], 1)],
    ids=["scheduler", "executor", "both"],
)
async def test_kills_change_nothing(
    mode: str,
    served: Served,
    gate: StepGate,
    expected: list[Stream],
    rng: random.Random,
    names: list[str],
    num_kills: int,
) -> None:
    most_steps = MOST_STEPS // num_kills
    streams = await with_kills(
        served,
        gate,
        ASKED,
        rng,
        num_kills=num_kills,
        most_steps=most_steps,
        names=names,
        is_due=_is_swapping if mode == "swap" else None,  # drafts are in every step
    )
    assert_same(streams, expected)


def _is_swapping(before: Metrics, after: Metrics) -> bool:
    """Requests are swapped out, and the step that waits copies blocks."""
    num_swapped = after["segue:swapped_blocks_total"] - before["segue:swapped_blocks_total"]
    return after["vllm:num_requests_swapped"] > 0 and num_swapped > 0


async def test_all_blocks_come_back(served: Served) -> None:
    async with Streams(served, asks(3, max_tokens=10)):
        pass

    def is_free() -> bool:
        metrics = served.metrics("scheduler-0")
        return metrics["segue:kv_blocks_free"] == metrics["segue:kv_blocks_usable"]

    wait_until(is_free, "all blocks are free")
