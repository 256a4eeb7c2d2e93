"""I10 to the end: a restored core does what the one does that was never stopped.

Rows that are equal show that nothing stored is lost; here both cores take the same results and plan
the same lanes for some steps, and stay equal: so nothing that decides anything is left unstored
(PROTOCOL.md H32). Knows nothing about processes. Invariant: the core that is checked is a copy.
"""

from __future__ import annotations

import copy

from scheduler_svc.core.engine_core import EngineCore
from scheduler_svc.core.events import ModelOutputReceived
from scheduler_svc.core.lane import PlannedStep
from scheduler_svc.core.rows import Rows, Table
from segue.types import ModelRunnerOutput, TokenLogprobs
from tests.sim.row_difference import difference
from tests.sim.world import Violation

NUM_ROUNDS = 5


def check_twin(core: EngineCore, restored: EngineCore, now_ms: int) -> None:
    original = copy.deepcopy(core)
    epoch, leader_id = core.leader
    restored.lead(epoch, leader_id, None)
    for number in range(NUM_ROUNDS):
        for one in (original, restored):
            _play(one, now_ms + number)
        theirs, ours = _in_order(original.rows()), _in_order(restored.rows())
        if theirs != ours:
            what = difference(theirs, ours)
            raise Violation(f"I10: {number + 1} steps after it was restored, another one: {what}")


def _play(core: EngineCore, now_ms: int) -> None:
    """Every lane answers its oldest step, and gets what it can take."""
    lanes = core.state.lanes
    for executor_id in sorted(lanes):
        if lanes[executor_id].planned:
            result = _result(core, lanes[executor_id].planned[0])
            core.handle(ModelOutputReceived(executor_id, result, now_ms))
    core.plan([executor_id for executor_id, lane in lanes.items() if lane.is_open])
    core.take_commit(now_ms)


def _in_order(rows: Rows) -> Rows:
    """Which of several blocks was registered first decides, not the number of its registration."""
    for key, blocks in rows.hashes.items():
        if key.table is Table.LANE_BLOCKS:
            values = {name: row.split(b"|") for name, row in blocks.items()}
            numbers = sorted(int(value[1]) for value in values.values())
            for name, (ref_cnt, number, *rest) in values.items():
                place = str(numbers.index(int(number))).encode()
                blocks[name] = b"|".join((ref_cnt, place, *rest))
    return rows


def _result(core: EngineCore, step: PlannedStep) -> ModelRunnerOutput:
    plan = step.plan
    rows = list(plan.output_indices)
    tokens = {request_id: plan.output_indices[request_id] % 3 for request_id in rows}
    indices = dict(plan.output_indices)
    if core.state.config.scheduler.num_spec_tokens:  # a plan's index is the highest possible
        known = core.state.requests
        indices |= {r: known[r].num_output_tokens for r in rows if r in known}
    with_logprobs = [
        request_id
        for request_id in rows
        if request_id in core.state.requests
        and core.state.requests[request_id].submission.sampling_params.num_logprobs is not None
    ]
    return ModelRunnerOutput(
        plan.step_id,
        plan.generation,
        rows,
        [indices[request_id] for request_id in rows],
        [[tokens[request_id]] for request_id in rows],
        logprobs={r: [TokenLogprobs(-float(tokens[r]))] for r in with_logprobs},
    )
