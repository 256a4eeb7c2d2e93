"""vLLM's V0 scheduler for one lane: waiting, running, swapped.

Prompts and decodes are different things. By default a step has prompts only or decodes only, and
prompts come first; with chunked prefill, decodes come first and the rest of the budget goes to
chunks of prompts. When blocks run out, the last running requests are preempted: to be recomputed,
or swapped out to the CPU (specification: vLLM 0.6.6.post1's V0 scheduler).

Knows nothing about executors or commits. Invariant: one step is in flight at most; scheduled tokens
are within the budget, and at most `max_num_seqs` requests are in a step.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from scheduler_svc.core.block_pool import BlockRow
from scheduler_svc.core.events import PauseState
from scheduler_svc.core.journal import Journal
from scheduler_svc.core.policy import SchedulingPolicy
from scheduler_svc.core.request import QueueName, Request
from scheduler_svc.core.scheduler_config import SchedulerConfig
from scheduler_svc.core.stop_check import make_finish
from scheduler_svc.core.three_queue.block_tables_state import (
    restore_block_tables,
    write_block_tables,
)
from scheduler_svc.core.three_queue.config import ThreeQueueConfig
from scheduler_svc.core.three_queue.lane_state import LaneState
from scheduler_svc.core.three_queue.output_pass import OutputPass
from scheduler_svc.core.three_queue.plan_builder import PlanBuilder
from scheduler_svc.core.three_queue.step_draft import StepDraft
from scheduler_svc.core.three_queue.step_planner import StepPlanner
from segue.types import (
    Finish,
    FinishReason,
    Generation,
    ModelRunnerOutput,
    SchedulerOutput,
    StepKey,
)


class ThreeQueueScheduler(SchedulingPolicy):
    """`last_draft` has what a plan does not say: modes of preemption, what was cached.

    Set `clock_ms` before `schedule` where time is known; results bring it along as well. Only a
    delay factor and the order of eviction depend on it.
    """

    def __init__(
        self,
        lane_id: str,
        config: SchedulerConfig,
        requests: dict[str, Request],
        journal: Journal,
    ) -> None:
        v0_config = ThreeQueueConfig.of(config)
        super().__init__(lane_id, v0_config, requests, journal)
        self.lane = LaneState(v0_config, journal)
        self.pause_state = PauseState.UNPAUSED
        self.last_draft: StepDraft | None = None
        self._planner = StepPlanner(self.lane)
        self._plan_builder = PlanBuilder(self.lane)
        self._output_pass = OutputPass(self.lane, requests, lane_id)
        self._ignored_ids: list[str] = []

    @property
    def max_steps_in_flight(self) -> int:
        return 1

    @property
    def clock_ms(self) -> int:
        return self.lane.clock_ms

    @clock_ms.setter
    def clock_ms(self, now_ms: int) -> None:
        self.lane.clock_ms = max(self.lane.clock_ms, now_ms)

    def schedule(
        self, key: StepKey, generation: Generation, traceparent: str = ""
    ) -> SchedulerOutput:
        draft = self._planner.plan(self.pause_state)
        self._end_ignored(draft)
        self.last_draft = draft
        return self._plan_builder.build(draft, key, generation, traceparent)

    def _end_ignored(self, draft: StepDraft) -> None:
        for request in draft.ignored:
            message = (
                f"{request.num_tokens} tokens are more than can be held "
                f"(at most {self.config.max_model_len} tokens, "
                f"{self.config.num_gpu_blocks} blocks of {self.config.block_size})"
            )
            finish = make_finish(request, FinishReason.LENGTH, message=message)
            request.set_finished(finish, self.clock_ms)
            self.lane.free(request)
            self._ignored_ids.append(request.request_id)

    def take_ignored(self) -> list[str]:
        ignored_ids, self._ignored_ids = self._ignored_ids, []
        return ignored_ids

    def update_from_output(
        self, plan: SchedulerOutput, result: ModelRunnerOutput, now_ms: int
    ) -> dict[str, Finish | None]:
        self.clock_ms = now_ms
        return self._output_pass.run(plan, result, now_ms, self.on_foreign_finish)

    def cancel_step(self, plan: SchedulerOutput) -> None:
        self._output_pass.cancel(plan)

    def add_request(self, request: Request) -> None:
        self.lane.waiting.add(request)

    def prepend_requests(self, requests: list[Request]) -> None:
        for request in reversed(requests):
            self.lane.waiting.prepend(request)

    def finish_request(self, request: Request, finish: Finish, now_ms: int) -> None:
        request.set_finished(finish, now_ms)
        self.lane.leave(request)

    def release_with_drop(self, request: Request) -> None:
        self.lane.release(request)

    def take_all(self) -> list[Request]:
        lane = self.lane
        assert not lane.running
        assert not lane.swapped
        taken = list(lane.waiting)
        for request in taken:
            lane.waiting.remove(request)
            request.queue = None
            request.drains_elsewhere = request.num_in_flight_tokens > 0
            self.journal.requests[request.request_id] = request
        return taken

    def preempt_all(self) -> None:
        self.lane.recompute_all()

    def end_generation(self) -> None:
        lane = self.lane
        lane.recompute_all()
        lane.tables.forget_all()
        lane.finished_ids.clear()  # the executor's table went with the generation
        lane.preempted_ids.clear()

    def set_pause_state(self, state: PauseState) -> None:
        self.pause_state = state

    def reset_prefix_cache(self, reset_running: bool) -> bool:
        """A swapped request is in use: its blocks have copies in the CPU's cache."""
        lane = self.lane
        if reset_running:
            lane.recompute_all(drop_output=True)
        if lane.running or lane.swapped:
            return False
        lane.tables.forget_all()
        return True

    def has_work(self) -> bool:
        lane = self.lane
        if lane.finished_ids or lane.preempted_ids:
            return True
        if self.pause_state is PauseState.PAUSED_ALL:
            return False
        return bool(lane.running or lane.swapped or lane.waiting)

    def num_tokens_given_back(self) -> int:
        return self.lane.num_tokens_given_back

    def num_free_blocks(self) -> int:
        return self.lane.tables.gpu.num_free

    def num_usable_blocks(self) -> int:
        return len(self.lane.tables.gpu.blocks)  # block 0 is one like the others (V0)

    def num_waiting(self) -> int:
        return len(self.lane.waiting)

    def num_unfinished(self) -> int:
        return len(self.lane.waiting) + len(self.lane.running) + len(self.lane.swapped)

    def num_cached_prefix_tokens(self, request: Request) -> int:
        return self.lane.tables.num_cached_blocks(request) * self.config.block_size

    def scalars(self) -> dict[str, Any]:
        lane = self.lane
        scalars: dict[str, Any] = {
            "clock_ms": lane.clock_ms,
            "finished_ids": lane.finished_ids,
            "preempted_ids": lane.preempted_ids,
            "prompt_delay": self._planner.delay.state(),
        }
        return scalars | write_block_tables(lane.tables, self.requests)

    def touched_block_ids(self) -> list[int]:
        return self.lane.tables.gpu.touched_block_ids()

    def block_rows(self, block_ids: Iterable[int]) -> list[BlockRow]:
        return self.lane.tables.gpu.rows(block_ids)

    def restore(
        self, queued: list[Request], blocks: list[BlockRow], scalars: dict[str, Any]
    ) -> None:
        lane = self.lane
        restore_block_tables(lane.tables, queued, blocks, scalars)
        queues = {queue.name: queue for queue in (lane.waiting, lane.running, lane.swapped)}
        for request in queued:
            assert request.queue is not None
            assert request.queue is not QueueName.HOLDING
            queues[request.queue].restore(request)
        lane.clock_ms = int(scalars["clock_ms"])
        lane.finished_ids = list(scalars["finished_ids"])
        lane.preempted_ids = list(scalars["preempted_ids"])
        self._planner.delay.restore(list(scalars["prompt_delay"]))
