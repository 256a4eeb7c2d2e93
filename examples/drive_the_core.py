"""The scheduler's core alone: no services, no Redis, no model. `python examples/drive_the_core.py`.

Three requests and a pool of eight blocks of four tokens. You see a prompt in chunks, a prefix hit
(`c` begins like `a`), a preemption when blocks run out, and a preempted request that finds its own
blocks again. Knows nothing about text: the "model" samples 100, 101, 102, … for each request.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # so that it runs from anywhere

from scheduler_svc.core.journal import Journal
from scheduler_svc.core.request import Request
from scheduler_svc.core.scheduler_config import SchedulerConfig
from scheduler_svc.core.unified.scheduler import UnifiedScheduler
from segue.types import (
    Generation,
    ModelRunnerOutput,
    SamplingParams,
    SchedulerOutput,
    StepKey,
    Submission,
)

GENERATION = Generation(epoch=1, number=1)
CONFIG = SchedulerConfig(
    block_size=4,
    num_gpu_blocks=9,  # block 0 is the null block
    max_num_seqs=4,
    max_num_batched_tokens=12,
    max_model_len=32,
    async_scheduling=False,  # a step is answered before the next is planned: easier to read
)
SHARED = [1, 2, 3, 4, 5, 6, 7, 8]
PROMPTS = {"a": [*SHARED, 9, 10], "b": list(range(20, 34)), "c": [*SHARED, 11]}
ARRIVES_BEFORE_STEP = {"a": 1, "b": 1, "c": 3}
MAX_TOKENS = {"a": 7, "b": 5, "c": 5}


def make_request(request_id: str) -> Request:
    params = SamplingParams(seed=0, max_tokens=MAX_TOKENS[request_id])
    arrival = ARRIVES_BEFORE_STEP[request_id]
    submission = Submission(request_id, tuple(PROMPTS[request_id]), params, arrival)
    return Request(submission, block_size=CONFIG.block_size)


def sample(plan: SchedulerOutput) -> ModelRunnerOutput:
    """What an executor would answer: one token for each row that samples."""
    indices = plan.output_indices
    tokens = [[100 + index] for index in indices.values()]
    return ModelRunnerOutput(
        plan.step_id, GENERATION, list(indices), list(indices.values()), tokens
    )


def describe(plan: SchedulerOutput, requests: dict[str, Request]) -> None:
    stats = plan.stats
    print(
        f"step {plan.step_id}: {plan.total_num_scheduled_tokens} of "
        f"{CONFIG.max_num_batched_tokens} tokens, {stats.num_free_blocks} blocks free, "
        f"{stats.num_cached_blocks} cached, {stats.num_waiting} waiting"
    )
    for request_id in plan.preempted_req_ids:
        print(f"    {request_id}  preempted: its blocks are free, but keep their hashes")
    whole = {row.request_id: row for row in plan.scheduled_new_reqs}
    resumed = {row.request_id: row for row in plan.scheduled_resumed_reqs}
    for request_id, num_tokens in plan.num_scheduled_tokens.items():
        request = requests[request_id]
        before = request.num_computed_tokens - num_tokens
        how = "new    " if request_id in whole else "running"
        how = "resumed" if request_id in resumed else how
        hit = f", {before} found in the cache" if how != "running" and before else ""
        samples = "samples" if request_id in plan.output_indices else "a chunk"
        blocks = " ".join(map(str, request.block_ids))
        print(
            f"    {request_id}  {how}  positions {before}..{before + num_tokens - 1} "
            f"({samples}{hit})  blocks {blocks}"
        )


def main() -> None:
    requests: dict[str, Request] = {}
    scheduler = UnifiedScheduler("lane", CONFIG, requests, Journal())
    step_id = 0
    while step_id == 0 or scheduler.has_work():
        step_id += 1
        for request_id, arrives in ARRIVES_BEFORE_STEP.items():
            if arrives == step_id:
                requests[request_id] = make_request(request_id)
                requests[request_id].lane_id = "lane"
                scheduler.add_request(requests[request_id])
                print(f"        {request_id} arrives with {len(PROMPTS[request_id])} tokens")
        plan = scheduler.schedule(StepKey(step_id, epoch=1), GENERATION)
        describe(plan, requests)
        for request_id, finish in scheduler.update_from_output(plan, sample(plan), 0).items():
            if finish is not None:
                tokens = requests[request_id].output_token_ids
                print(f"        {request_id} ends ({finish.reason.value}) with {tokens}")


if __name__ == "__main__":
    main()
