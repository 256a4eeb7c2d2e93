"""Builders of what the tests of the core need: requests, a lane's scheduler, and a driver for it.

Knows nothing about the engine. Invariant: what is built is complete, so a test names only what it
is about.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scheduler_svc.core.journal import Journal
from scheduler_svc.core.request import Request
from scheduler_svc.core.scheduler_config import SchedulerConfig
from scheduler_svc.core.unified.scheduler import UnifiedScheduler
from segue.types import (
    Finish,
    Generation,
    ModelRunnerOutput,
    SamplingParams,
    SchedulerOutput,
    StepKey,
    Submission,
)

GENERATION = Generation(1, 1)
EOS = 2


def make_submission(
    request_id: str = "r0", prompt: Sequence[int] = (5, 6, 7), **fields: Any
) -> Submission:
    """`fields` are a submission's, or `max_tokens`, `eos_token_id` and `stop_token_ids`."""
    params = SamplingParams(
        seed=0,
        max_tokens=fields.pop("max_tokens", 16),
        eos_token_id=fields.pop("eos_token_id", EOS),
        stop_token_ids=fields.pop("stop_token_ids", ()),
    )
    return Submission(request_id, tuple(prompt), params, fields.pop("arrival_unix_ms", 0), **fields)


def make_request(
    request_id: str = "r0", prompt: Sequence[int] = (5, 6, 7), *, block_size: int = 4, **fields: Any
) -> Request:
    return Request(make_submission(request_id, prompt, **fields), block_size=block_size)


def make_config(**fields: Any) -> SchedulerConfig:
    """Small and without overlap, unless the test says otherwise."""
    defaults: dict[str, Any] = {
        "block_size": 4,
        "num_gpu_blocks": 33,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "max_model_len": 64,
        "async_scheduling": False,
    }
    return SchedulerConfig(**(defaults | fields))


class LaneDriver:
    """One lane's scheduler, and an executor that samples `next_token` for whoever samples."""

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        lane_id: str = "e0",
        requests: dict[str, Request] | None = None,
        next_token: int = 9,
    ) -> None:
        self.requests = requests if requests is not None else {}
        self.journal = Journal()
        self.scheduler = UnifiedScheduler(lane_id, config, self.requests, self.journal)
        self.next_token = next_token
        self.planned: list[SchedulerOutput] = []
        self._step_id = 0

    def add(self, *requests: Request) -> None:
        for request in requests:
            request.lane_id = self.scheduler.lane_id
            self.requests[request.request_id] = request
            self.scheduler.add_request(request)

    def plan(self) -> SchedulerOutput:
        self._step_id += 1
        plan = self.scheduler.schedule(StepKey(self._step_id, 1), GENERATION)
        self.planned.append(plan)
        return plan

    def answer(self, **tokens: list[int]) -> dict[str, Finish | None]:
        """The oldest step in flight is answered, with these tokens where some are named.

        A row without a token is one that failed.
        """
        plan = self.planned.pop(0)
        request_ids = list(plan.output_indices)
        result = ModelRunnerOutput(
            plan.step_id,
            GENERATION,
            request_ids,
            [plan.output_indices[request_id] for request_id in request_ids],
            [tokens.get(request_id, [self.next_token]) for request_id in request_ids],
            row_errors={request_id: "failed" for request_id, row in tokens.items() if not row},
        )
        return self.scheduler.update_from_output(plan, result, now_ms=0)

    def step(self, **tokens: list[int]) -> SchedulerOutput:
        plan = self.plan()
        self.answer(**tokens)
        return plan
