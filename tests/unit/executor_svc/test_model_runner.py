"""The runner with the hand model: what is read through the cache, refused, counted and kept."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from executor_svc.kv_cache import KVCache
from executor_svc.model_runner import ModelRunner
from executor_svc.models.hand import HandModel
from executor_svc.request_table import PlanError
from kernels import AttentionMetadata
from segue.types import (
    CachedRequestData,
    Generation,
    ModelRunnerOutput,
    NewRequestData,
    SamplingParams,
    SchedulerOutput,
)
from tests.executor_driver import GREEDY, ExecutorDriver

PROMPT = [256, 3, 1, 4, 1, 5, 9, 2, 6]


def by_hand(token_ids: list[int]) -> int:
    return sum((position + 1) * token_id for position, token_id in enumerate(token_ids)) % 256


def text(prompt: list[int], num_tokens: int) -> list[int]:
    token_ids = list(prompt)
    for _ in range(num_tokens):
        token_ids.append(by_hand(token_ids))
    return token_ids[len(prompt) :]


def make_driver() -> ExecutorDriver:
    return ExecutorDriver(HandModel(), num_blocks=32, block_size=4)


def test_prefill_and_decode() -> None:
    driver = make_driver()
    driver.add("a", PROMPT)
    driver.prefill("a", [4, 3])
    driver.decode(["a"], 5)
    assert driver.outputs("a") == text(PROMPT, 6)


def test_same_step_prefix_hit() -> None:
    """B reads blocks that A fills in the same step, whichever of the two comes first (H21)."""
    driver = make_driver()
    driver.add("a", PROMPT)
    driver.plan_blocks("a", len(PROMPT))
    driver.add("b", [*PROMPT[:8], 77], shared_with="a", num_shared_blocks=2)
    driver.step({"b": 1, "a": 9})
    assert driver.outputs("b") == [by_hand([*PROMPT[:8], 77])]


def test_preempted_and_resumed_in_one_plan() -> None:
    driver = make_driver()
    driver.add("a", PROMPT)
    driver.prefill("a")
    driver.decode(["a"], 2)
    driver.preempt("a")
    driver.step({"a": 12})
    driver.decode(["a"], 1)
    assert driver.outputs("a") == text(PROMPT, 5)
    assert driver.runner.num_positions_computed == 9 + 2 + 12 + 1
    assert driver.runner.num_positions_recomputed == 11


def test_recomputation_is_counted_across_generations() -> None:
    """A new generation computes again what the old one had; a finished request is forgotten."""
    driver = make_driver()
    driver.add("a", PROMPT)
    driver.prefill("a")
    driver.new_generation()
    driver.add("b", PROMPT)
    driver.step({"a": 5, "b": 9})
    assert driver.runner.num_positions_recomputed == 5
    driver.finish("a")
    driver.step({"b": 1})
    driver.add("a", PROMPT)
    driver.prefill("a")
    assert driver.runner.num_positions_recomputed == 5


def test_rows_are_reused_and_grow() -> None:
    """Many requests come and go, and long ones: the columns grow under the others' feet."""
    driver = ExecutorDriver(HandModel(), num_blocks=400, block_size=4)
    driver.add("long", PROMPT)
    driver.prefill("long")
    for round_number in range(4):
        names = [f"r{round_number}-{i}" for i in range(20)]
        for index, name in enumerate(names):
            driver.add(name, [index] * (10 + index))
        driver.step({name: 10 + index for index, name in enumerate(names)} | {"long": 1})
        driver.decode([*names, "long"], 3)
        for index, name in enumerate(names):
            assert driver.outputs(name) == text([index] * (10 + index), 4)
            driver.finish(name)
    driver.decode(["long"], 100)
    assert driver.outputs("long") == text(PROMPT, 1 + 4 * 4 + 100)


def test_output_says_who_sampled() -> None:
    driver = make_driver()
    driver.add("a", PROMPT)
    driver.add("b", PROMPT)
    output = driver.step({"a": 4, "b": 9})
    assert output.request_ids == ["b"]
    assert output.first_output_indices == [0]
    output = driver.step({"b": 1, "a": 5})
    assert (output.request_ids, output.first_output_indices) == (["b", "a"], [1, 0])
    assert output.step_id == 2


def test_step_without_tokens() -> None:
    """A plan may only announce who has finished."""
    driver = make_driver()
    driver.add("a", PROMPT)
    driver.prefill("a")
    driver.finish("a")
    output = driver.step({})
    assert output.request_ids == []
    assert driver.runner.num_requests == 0


def runner_with_a() -> ModelRunner:
    runner = ModelRunner(HandModel(), KVCache(HandModel().kv_cache_spec, 8, 4, num_cpu_blocks=2))
    runner.execute(plan_new("a", num_scheduled=9))
    return runner


def plan_new(
    request_id: str, num_scheduled: int, **changes: int | tuple[int, ...]
) -> SchedulerOutput:
    new = NewRequestData(request_id, tuple(PROMPT), 9, 0, (1, 2, 3), GREEDY)
    return SchedulerOutput(
        step_id=1,
        epoch=1,
        generation=Generation(1, 1),
        scheduled_new_reqs=[replace(new, **changes)],
        num_scheduled_tokens={request_id: num_scheduled},
        output_indices={request_id: 0} if num_scheduled == 9 else {},
    )


def plan_cached(request_id: str, num_computed: int, num_scheduled: int = 1) -> SchedulerOutput:
    return SchedulerOutput(
        step_id=2,
        epoch=1,
        generation=Generation(1, 1),
        scheduled_cached_reqs=CachedRequestData([request_id], [()], [num_computed]),
        num_scheduled_tokens={request_id: num_scheduled},
    )


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (plan_cached("b", 9), "request b is not held"),
        (plan_cached("a", 8), "request a: 8 tokens computed says the plan, 9"),
        (plan_cached("a", 9, 0), "request a has nothing to compute"),
        (plan_cached("a", 9, 2), "request a is scheduled up to position 11, and has 10 tokens"),
        (plan_new("a", 9), "request a is new in the plan, but held"),
        (plan_new("b", 9, block_ids=(4, 5)), "request b .* has 2 blocks of 4"),
        (plan_new("b", 9, block_ids=(4, 5, 8)), "request b: there is no block 8"),
        (plan_new("b", 9, num_computed_tokens=9), "request b: 9 of 9 tokens computed"),
        (plan_new("b", 9, num_prompt_tokens=8), "request b samples output 0 behind position 9"),
        (replace(plan_cached("a", 9), num_scheduled_tokens={"c": 1}), "request c is scheduled"),
        (replace(plan_cached("a", 9), output_indices={"c": 1}), "request c samples without"),
        (replace(plan_cached("a", 9), output_indices={"a": 2}), "request a samples output 2"),
        (replace(plan_cached("a", 9), draft_token_ids={"a": [1]}), "has nothing to compute"),
        (replace(plan_cached("a", 9), swap_out=[(9, 0)]), "no block 9"),
    ],
)
def test_a_plan_that_can_not_be_is_refused(plan: SchedulerOutput, message: str) -> None:
    """And nothing runs after it until a new generation is opened (rule 3)."""
    runner = runner_with_a()
    with pytest.raises(ValueError, match=message):
        runner.execute(plan)
    with pytest.raises(PlanError, match="an earlier step failed"):
        runner.execute(plan_cached("a", 9))
    runner.reset()
    assert runner.execute(plan_new("a", num_scheduled=9)).sampled_token_ids == [[by_hand(PROMPT)]]


def test_swap_and_copy_come_before_writes() -> None:
    """Blocks that are swapped out are written by the same step, and come back as they were."""
    runner = runner_with_a()
    out = replace(
        plan_new("b", 9, token_ids=(*PROMPT[:8], 50)),
        preempted_req_ids=["a"],
        swap_out=[(1, 0), (2, 1)],
        copies=[(3, 6)],
    )
    assert runner.execute(out).sampled_token_ids == [[by_hand([*PROMPT[:8], 50])]]
    back = replace(
        plan_new("a", 1, num_computed_tokens=8, block_ids=(4, 5, 7)), swap_in=[(0, 4), (1, 5)]
    )
    back = replace(back, output_indices={"a": 0})
    assert runner.execute(back).sampled_token_ids == [[by_hand(PROMPT)]]


def test_token_outside_the_vocabulary_is_a_row_error() -> None:
    """The request's own fault: its neighbour in the step gets its token."""
    driver = make_driver()
    driver.add("a", PROMPT)
    driver.add("bad", [5, 300])
    output = driver.step({"a": 9, "bad": 2})
    assert output.request_ids == ["a", "bad"]
    assert output.sampled_token_ids == [[by_hand(PROMPT)], []]
    assert list(output.row_errors) == ["bad"]


class PoisonedModel(HandModel):
    """Its logits are NaN for a context whose greedy token is 13, as a broken weight might."""

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        logits = super().compute_logits(hidden_states)
        logits[(hidden_states == 13).squeeze(1)] = torch.nan
        return logits


def test_nan_is_a_row_error_and_the_steps_behind_it_run() -> None:
    """With overlap the next step is planned already: it has to run, for the others' sake."""
    driver = ExecutorDriver(PoisonedModel(), num_blocks=32, block_size=4)
    driver.add("a", PROMPT)
    driver.add("bad", [13])
    output = driver.step({"a": 9, "bad": 1})
    assert output.row_errors == {"bad": "the model's logits are not numbers"}
    driver.requests["bad"].token_ids.append(0)  # what the scheduler plans without knowing
    output = driver.step({"bad": 1, "a": 1})
    assert output.sampled_token_ids == [[], [text(PROMPT, 2)[1]]]
    assert list(output.row_errors) == ["bad"]


def test_metadata_reaches_the_model() -> None:
    """Columns of a mixed batch: a chunk, a decode, in the plan's order."""
    seen: list[AttentionMetadata] = []

    class WatchingModel(HandModel):
        def forward(
            self,
            input_ids: torch.Tensor,
            positions: torch.Tensor,
            kv_cache: KVCache,
            metadata: AttentionMetadata,
        ) -> torch.Tensor:
            seen.append(metadata)
            return super().forward(input_ids, positions, kv_cache, metadata)

    driver = ExecutorDriver(WatchingModel(), num_blocks=32, block_size=4)
    driver.add("a", PROMPT)
    driver.prefill("a")
    driver.add("b", PROMPT)
    driver.step({"b": 5, "a": 1})
    metadata = seen[-1]
    assert metadata.cu_seqlens_q.tolist() == [0, 5, 6]
    assert metadata.seq_lens.tolist() == [5, 10]
    assert metadata.block_tables.tolist() == [[4, 5, 0], [1, 2, 3]]
    assert metadata.slot_mapping.tolist() == [16, 17, 18, 19, 20, 13]
    assert (metadata.max_seqlen_q, metadata.max_seqlen_k) == (5, 10)


def test_seeded_text_does_not_depend_on_preemption() -> None:
    params = SamplingParams(seed=99, max_tokens=100, temperature=1.0)
    outputs: list[list[int]] = []
    for is_preempted in (False, True):
        driver = make_driver()
        driver.add("a", PROMPT, params)
        driver.prefill("a")
        driver.decode(["a"], 3)
        if is_preempted:
            driver.preempt("a")
            driver.step({"a": 13})
        else:
            driver.decode(["a"], 1)
        driver.decode(["a"], 3)
        outputs.append(driver.outputs("a"))
    assert outputs[0] == outputs[1]
    assert outputs[0] != text(PROMPT, 8)


def test_capacity() -> None:
    runner = ModelRunner(HandModel(max_model_len=100), KVCache(HandModel().kv_cache_spec, 8, 4))
    assert (runner.capacity.num_blocks, runner.capacity.block_size) == (8, 4)
    assert (runner.capacity.max_model_len, runner.capacity.vocab_size) == (100, 259)


def test_timings_add_up() -> None:
    driver = make_driver()
    driver.add("a", PROMPT)
    output: ModelRunnerOutput = driver.step({"a": 9})
    timings = output.timings
    assert timings.idle_us == 0
    assert timings.prepare_us > 0
    assert timings.forward_us > 0
