"""The simulation that policies are compared in: nothing is lost, FIFO is FIFO, and time adds up."""

from __future__ import annotations

import pytest

from tests.bench.cost_model import CostModel
from tests.bench.policy_cases import FIFO, FIFO_TOLD, POLICIES, RECOMPUTE, SWAP, UNIFIED, Case
from tests.bench.request_trace import MAX_TOKENS, make_load, read_trace

NUM_REQUESTS = 60
TIGHT = 0.45  # memory for about eight requests


def tight(policy: str) -> Case:
    return Case(policy, 8.0, TIGHT, num_requests=NUM_REQUESTS)


@pytest.mark.parametrize("policy", POLICIES)
def test_each_request_gets_its_tokens_and_gives_back_its_blocks(policy: str) -> None:
    simulation = tight(policy).simulation()
    num_free = simulation.policy.num_free_blocks()
    outcome = simulation.run()
    wanted = make_load(read_trace(limit=NUM_REQUESTS), 1.0).num_output_tokens
    assert {
        request_id: request.num_output_tokens for request_id, request in simulation.requests.items()
    } == wanted
    assert outcome.num_output_tokens == sum(wanted.values())
    assert outcome.latency_s.keys() == wanted.keys()
    for request_id, latency_s in outcome.latency_s.items():
        assert 0 < outcome.first_token_s[request_id] <= latency_s <= outcome.elapsed_s
    assert simulation.policy.num_free_blocks() == num_free
    assert simulation.policy.num_unfinished() == 0


@pytest.mark.parametrize("policy", [FIFO, FIFO_TOLD])
def test_fifo_admits_nobody_before_the_batch_has_ended(policy: str) -> None:
    """Who runs is of the batch that is complete, until none of it is left."""
    simulation = tight(policy).simulation()
    batches: list[set[str]] = [set()]
    is_complete = False
    while simulation.has_work():
        plan = simulation.advance()
        new = {row.request_id for row in plan.scheduled_new_reqs}
        if new and is_complete:
            assert all(simulation.requests[request_id].is_finished for request_id in batches[-1])
            batches.append(set())
        batches[-1] |= new
        is_complete = plan.stats.token_budget_left > 0  # no prompt had to wait for its turn
    assert len(batches) > 5
    assert max(map(len, batches)) > 2


def test_fifo_leaves_each_request_room_up_to_its_limit() -> None:
    """The batch is as large as that allows: the next one waiting would not have fitted."""
    simulation = tight(FIFO).simulation()
    size, usable = simulation.policy.config.block_size, simulation.policy.config.num_usable_blocks
    while simulation.has_work():
        running = simulation.advance().num_scheduled_tokens
        prompts = [simulation.requests[one].num_prompt_tokens for one in running]
        assert sum(-(-(prompt + MAX_TOKENS) // size) for prompt in prompts) <= usable


def test_continuous_batching_is_no_slower_than_fifo() -> None:
    fifo = tight(FIFO).run()
    for policy in (FIFO_TOLD, RECOMPUTE, SWAP, UNIFIED):
        outcome = tight(policy).run()
        assert outcome.tokens_per_s >= fifo.tokens_per_s
        assert outcome.num_steps < fifo.num_steps


def test_swapping_copies_instead_of_computing_again() -> None:
    recompute, swap = tight(RECOMPUTE).run(), tight(SWAP).run()
    assert recompute.num_preemptions > 0
    assert recompute.num_computed_again > 0
    assert recompute.num_swapped_out_blocks == 0
    assert swap.num_preemptions > 0
    assert swap.num_computed_again == 0
    assert swap.num_swapped_in_blocks == swap.num_swapped_out_blocks > 0
    assert swap.copying_s == pytest.approx(
        2 * swap.num_swapped_out_blocks * CostModel().swapped_block_s
    )


def test_a_step_costs_what_the_model_says() -> None:
    """Worked out by hand: few tokens cost a reading of the weights, many cost their products."""
    costs = CostModel()
    weights_s = 16.06e9 / (0.75 * 1.555e12)
    assert costs.step_s(10, 0, 0) == pytest.approx(0.003 + weights_s)
    assert costs.step_s(1000, 0, 0) == pytest.approx(0.003 + 1000 * 16.06e9 / (0.55 * 312e12))
    context_s = 5000 * 131072 / (0.75 * 1.555e12)
    swapped_s = 7 * 16 * 131072 / (0.8 * 31.5e9)
    assert costs.step_s(10, 5000, 7) == pytest.approx(0.003 + weights_s + context_s + swapped_s)


def test_the_same_case_comes_out_the_same() -> None:
    assert tight(UNIFIED).run() == tight(UNIFIED).run()


def test_a_request_that_arrives_later_is_not_served_before() -> None:
    """With time between them, each has the machine for itself."""
    case = Case(UNIFIED, 0.01, num_requests=3)
    outcome = case.run()
    last = read_trace(limit=3)[-1]
    assert outcome.elapsed_s > last.arrival_s / 0.01
    assert set(outcome.running) == {1}
