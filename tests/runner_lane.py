"""A lane over a real ModelRunner, with the steps in flight that the engine would have.

Knows no store, no stream and no clock. Invariant: step n + 2 is planned when the result of step n
is processed and that of n + 1 is not, so a plan knows no more than in production.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from executor_svc.model_runner import ModelRunner
from scheduler_svc.core.journal import Journal
from scheduler_svc.core.request import Request
from scheduler_svc.core.scheduler_config import SchedulerConfig
from scheduler_svc.core.three_queue.config import ThreeQueueConfig
from scheduler_svc.core.three_queue.scheduler import ThreeQueueScheduler
from scheduler_svc.core.unified.scheduler import UnifiedScheduler
from segue.types import ModelRunnerOutput, SamplingParams, SchedulerOutput, StepKey, Submission
from segue.wire import decode_step, encode_step
from tests.factories import GENERATION

DEPTH = 2
LANE_ID = "e0"


class RunnerLane:
    """`unified` with two steps in flight; `three_queue`, with one, where its config is given."""

    def __init__(
        self, runner: ModelRunner, v0_config: ThreeQueueConfig | None = None, **config: Any
    ) -> None:
        capacity = runner.capacity
        defaults: dict[str, Any] = {
            "block_size": capacity.block_size,
            "max_num_batched_tokens": 128,
            "max_num_seqs": 8,
            "max_model_len": 512,
        }
        self.runner = runner
        self.requests: dict[str, Request] = {}
        journal = Journal()
        if v0_config is not None:
            self.scheduler = ThreeQueueScheduler(
                LANE_ID, v0_config.for_capacity(capacity), self.requests, journal
            )
        else:
            scheduler_config = SchedulerConfig(**defaults | config).for_capacity(capacity)
            self.scheduler = UnifiedScheduler(LANE_ID, scheduler_config, self.requests, journal)
        self._depth = 1 if v0_config is not None else DEPTH
        self.num_steps = 0
        self.num_preemptions = 0
        self.num_blocks_swapped = {"in": 0, "out": 0}
        self.num_planned_drafts = 0
        self.num_verified_drafts = 0
        self._planned: deque[SchedulerOutput] = deque()

    def add(self, request_id: str, prompt: list[int], params: SamplingParams) -> None:
        submission = Submission(
            request_id, tuple(prompt), params, arrival_unix_ms=len(self.requests)
        )
        request = Request(submission, block_size=self.runner.capacity.block_size)
        request.lane_id = LANE_ID
        self.requests[request_id] = request
        self.scheduler.add_request(request)

    def run(self, max_steps: int = 2000) -> None:
        """Until every request has ended."""
        for _ in range(max_steps):
            while len(self._planned) < self._depth:
                self._planned.append(self._plan())
            plan = self._planned.popleft()
            result: ModelRunnerOutput = self.runner.execute(decode_step(encode_step(plan)))
            assert not result.row_errors
            self.num_planned_drafts += sum(map(len, plan.draft_token_ids.values()))
            self.num_verified_drafts += sum(result.num_verified_drafts)
            self.scheduler.update_from_output(plan, result, 0)
            if all(request.is_finished for request in self.requests.values()):
                return
        raise AssertionError(f"not done after {max_steps} steps")

    def outputs(self) -> dict[str, list[int]]:
        return {name: request.output_token_ids for name, request in self.requests.items()}

    def _plan(self) -> SchedulerOutput:
        self.num_steps += 1
        plan = self.scheduler.schedule(StepKey(self.num_steps, 1), GENERATION)
        self.num_preemptions += len(plan.preempted_req_ids)
        self.num_blocks_swapped["in"] += len(plan.swap_in)
        self.num_blocks_swapped["out"] += len(plan.swap_out)
        return plan
