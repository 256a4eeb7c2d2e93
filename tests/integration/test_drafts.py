"""With drafts or without, a request has the same text, token for token (DESIGN.md section 3).

The production scheduler plans two steps ahead, so it counts drafts as computed that the executor
has rejected meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from executor_svc.model_loader import LoadOptions, load_model_runner
from executor_svc.model_runner import ModelRunner
from segue.types import SamplingParams
from tests.runner_lane import RunnerLane
from tests.tiny_checkpoint import write_tiny_llama

NUM_DRAFTS = 4
GREEDY = SamplingParams(seed=1, max_tokens=60, temperature=0.0)
DRAWN = SamplingParams(seed=7, max_tokens=60, temperature=1.0)
PARAMS: dict[str, SamplingParams] = {
    "greedy": GREEDY,
    "temperature_1": DRAWN,
    "filtered": replace(DRAWN, temperature=0.8, top_k=20, top_p=0.9, min_p=0.01),
    "penalized": replace(
        GREEDY, presence_penalty=0.5, frequency_penalty=0.4, repetition_penalty=1.2
    ),
    "biased": replace(DRAWN, logit_bias=((9, 100.0),)),
    "ended": replace(GREEDY, logit_bias=((9, 100.0),), eos_token_id=9, min_tokens=13),
    "logprobs": replace(DRAWN, num_logprobs=3),
}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def near_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A draft model that agrees: the target itself."""
    return write_tiny_llama(tmp_path_factory.mktemp("near"))


@pytest.fixture(scope="module")
def far_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that agrees where a bias leaves no choice, and hardly ever else."""
    return write_tiny_llama(tmp_path_factory.mktemp("far"), seed=5, num_hidden_layers=1)


def runner(model_dir: Path, **options: Any) -> ModelRunner:
    return load_model_runner(model_dir, replace(LoadOptions(num_blocks=200), **options))


def lane(model_runner: ModelRunner, num_drafts: int, **config: Any) -> RunnerLane:
    made = RunnerLane(model_runner, num_spec_tokens=num_drafts, **config)
    generator = torch.Generator().manual_seed(2)
    phrase = torch.randint(0, 320, (12,), generator=generator).tolist()
    for index, (name, params) in enumerate(PARAMS.items()):
        made.add(name, phrase[index:] * 4 + phrase[: index + 1], params)
    return made


@pytest.fixture(scope="module")
def undisturbed(model_dir: Path) -> RunnerLane:
    made = lane(runner(model_dir), 0)
    made.run()
    assert {name: len(tokens) for name, tokens in made.outputs().items()} == {
        name: 14 if name == "ended" else 60 for name in PARAMS
    }
    return made


def assert_same(got: RunnerLane, expected: RunnerLane) -> None:
    assert got.outputs() == expected.outputs()
    for name, request in got.requests.items():
        assert request.output_logprobs == expected.requests[name].output_logprobs


def test_prompt_look_up(model_dir: Path, undisturbed: RunnerLane) -> None:
    drafting = lane(runner(model_dir, speculative_method="ngram"), NUM_DRAFTS)
    drafting.run()
    assert_same(drafting, undisturbed)
    assert drafting.runner.num_accepted_draft_tokens > 0
    assert drafting.num_steps < undisturbed.num_steps


def test_a_result_says_how_many_drafts_were_made(model_dir: Path) -> None:
    """Fewer than the plans had room for: the acceptance rate is of these."""
    drafting = lane(runner(model_dir, speculative_method="ngram"), NUM_DRAFTS)
    drafting.run()
    assert drafting.num_verified_drafts == drafting.runner.num_draft_tokens
    assert 0 < drafting.num_verified_drafts < drafting.num_planned_drafts


def test_drafting_is_a_phase_of_its_own(model_dir: Path) -> None:
    """So it is a span of its own where steps are traced; without drafts there is none."""
    for num_drafts, expected in ((NUM_DRAFTS, ["draft"]), (0, [])):
        drafting = lane(runner(model_dir, speculative_method="ngram"), num_drafts)
        with pytest.raises(AssertionError, match="not done"):
            drafting.run(max_steps=5)
        names = [phase.name for phase in drafting.runner.phases]
        assert names == [*expected, "prepare_inputs", "forward", "sample"]


@pytest.mark.parametrize("num_drafts", [1, NUM_DRAFTS])
def test_a_draft_model_that_agrees(
    model_dir: Path, near_dir: Path, undisturbed: RunnerLane, num_drafts: int
) -> None:
    """It draws with the same noise: at temperature 1 too, nearly all drafts are accepted."""
    drafting = lane(
        runner(model_dir, speculative_method="draft_model", draft_model=near_dir), num_drafts
    )
    drafting.run()
    assert_same(drafting, undisturbed)
    made, accepted = drafting.runner.num_draft_tokens, drafting.runner.num_accepted_draft_tokens
    assert accepted > 0.9 * made > 0


def test_a_draft_model_that_does_not(
    model_dir: Path, far_dir: Path, undisturbed: RunnerLane
) -> None:
    drafting = lane(
        runner(model_dir, speculative_method="draft_model", draft_model=far_dir), NUM_DRAFTS
    )
    drafting.run()
    assert_same(drafting, undisturbed)
    assert drafting.runner.num_accepted_draft_tokens < 0.8 * drafting.runner.num_draft_tokens


@pytest.mark.parametrize("method", ["ngram", "draft_model"])
def test_with_preemption_and_chunks(
    model_dir: Path, near_dir: Path, undisturbed: RunnerLane, method: str
) -> None:
    """Few blocks, a small budget: drafts in flight are dropped with the blocks they were in."""
    draft_model = near_dir if method == "draft_model" else None
    options = {"speculative_method": method, "draft_model": draft_model, "num_blocks": 26}
    drafting = lane(runner(model_dir, **options), NUM_DRAFTS, max_num_batched_tokens=40)
    drafting.run()
    assert_same(drafting, undisturbed)
    assert drafting.num_preemptions > 0


def test_an_executor_that_drafts_nothing(model_dir: Path, undisturbed: RunnerLane) -> None:
    """The plan has room for drafts; that nobody makes any costs room, and nothing else."""
    drafting = lane(runner(model_dir), NUM_DRAFTS)
    drafting.run()
    assert_same(drafting, undisturbed)
    assert drafting.runner.num_draft_tokens == 0


def test_rejected_drafts_are_not_computed_again(model_dir: Path) -> None:
    """They never counted, so I11 can be read off the executor's counter with drafts too."""
    drafting = lane(runner(model_dir, speculative_method="ngram"), NUM_DRAFTS)
    drafting.run()
    assert drafting.runner.num_draft_tokens > drafting.runner.num_accepted_draft_tokens
    assert drafting.runner.num_positions_recomputed == 0


@pytest.mark.parametrize("method", ["ngram", "draft_model"])
def test_up_to_the_longest_text(model_dir: Path, near_dir: Path, method: str) -> None:
    """Near max_model_len there is no room for drafts, and none is needed."""
    texts: list[list[int]] = []
    for num_drafts in (0, NUM_DRAFTS):
        draft_model = near_dir if method == "draft_model" and num_drafts else None
        options = {"speculative_method": method if num_drafts else "", "draft_model": draft_model}
        made = RunnerLane(
            runner(model_dir, **options), num_spec_tokens=num_drafts, max_model_len=90
        )
        made.add("a", [5, 6, 7, 8] * 12, replace(GREEDY, max_tokens=1000))
        made.run()
        texts.append(made.outputs()["a"])
    assert texts[0] == texts[1]
    assert len(texts[0]) == 90 - 48
