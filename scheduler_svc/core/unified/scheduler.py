"""vLLM's V1 scheduler for one lane: no prefill phase, no decode phase.

Each request has `num_computed_tokens`, and tries to catch up with the tokens it has (prompt,
output, drafts, and placeholders for those that a step in flight will sample). A step spends one
token budget, first on running requests in order, then on waiting ones. Chunked prefill, prefix
caching and overlapped scheduling all follow from that (specification: vLLM 0.32.0's V1 scheduler).

Knows nothing about executors or commits. Invariant: the sum of scheduled tokens is within the
budget, and no one is admitted beyond `max_num_seqs`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from scheduler_svc.core.block_pool import BlockRow
from scheduler_svc.core.events import PauseState
from scheduler_svc.core.journal import Journal
from scheduler_svc.core.kv_cache_manager import CacheListener
from scheduler_svc.core.policy import SchedulingPolicy
from scheduler_svc.core.request import QueueName, Request
from scheduler_svc.core.request_queue import RequestQueue, make_request_queue
from scheduler_svc.core.rules.kv_connector import KVConnector
from scheduler_svc.core.rules.long_prefill_cap import long_prefill_cap
from scheduler_svc.core.rules.rule import Rule
from scheduler_svc.core.scheduler_config import SchedulerConfig
from scheduler_svc.core.unified.admission_pass import AdmissionPass
from scheduler_svc.core.unified.features import Features
from scheduler_svc.core.unified.lane_state import LaneState
from scheduler_svc.core.unified.output_pass import OutputPass
from scheduler_svc.core.unified.plan_builder import PlanBuilder
from scheduler_svc.core.unified.prefix_stats import PrefixStats
from scheduler_svc.core.unified.running_pass import RunningPass
from scheduler_svc.core.unified.step_draft import StepDraft
from segue.types import (
    Finish,
    Generation,
    ModelRunnerOutput,
    SchedulerOutput,
    StepKey,
)


class UnifiedScheduler(SchedulingPolicy):
    """`last_draft` has what a plan does not carry (yet): encoder inputs, whether KV is loaded."""

    def __init__(
        self,
        lane_id: str,
        config: SchedulerConfig,
        requests: dict[str, Request],
        journal: Journal,
        *,
        connector: KVConnector | None = None,
        listener: CacheListener | None = None,
    ) -> None:
        super().__init__(lane_id, config, requests, journal)
        self.lane = LaneState(config, journal, self.make_queue, listener)
        self.features = features = Features(self.lane, connector, self.extra_rules())
        self.prefix_stats = PrefixStats()
        self.pause_state = PauseState.UNPAUSED
        self.last_draft: StepDraft | None = None
        self._step_counter = 0
        self._running_pass = RunningPass(self.lane, features)
        self._admission_pass = AdmissionPass(self.lane, features, self.prefix_stats)
        self._plan_builder = PlanBuilder(self.lane, features.rules)
        self._output_pass = OutputPass(self.lane, requests, lane_id, features)

    def make_queue(self, name: QueueName) -> RequestQueue:
        """For the requests that wait. Override it to admit them in an order of your own."""
        return make_request_queue(self.config, name, self.journal)

    def extra_rules(self) -> list[Rule]:
        """Rules that are to be asked after ours. Override it to limit what is admitted or served.

        `lane` is there, and nothing else yet.
        """
        return []

    @property
    def max_steps_in_flight(self) -> int:
        return self.config.max_steps_in_flight

    def schedule(
        self, key: StepKey, generation: Generation, traceparent: str = ""
    ) -> SchedulerOutput:
        draft = self._begin_step()
        self._running_pass.run(draft)
        self._admission_pass.run(draft, self.pause_state)
        self._check_limits(draft)
        return self._plan_builder.build(draft, key, generation, traceparent)

    def _begin_step(self) -> StepDraft:
        self._step_counter += 1
        lane, config = self.lane, self.config
        num_requests = len(lane.running) + len(lane.waiting) + len(lane.holding)
        token_budget = config.token_budget
        if self.pause_state is PauseState.PAUSED_ALL:
            token_budget = 0
        cap = long_prefill_cap(config, num_requests)
        draft = StepDraft(self._step_counter, token_budget, config.max_num_batched_tokens, cap)
        draft.is_admitting = self.pause_state is PauseState.UNPAUSED
        for begin_step in self.features.rules.begin_step:
            begin_step(draft)
        self.last_draft = draft
        return draft

    def _check_limits(self, draft: StepDraft) -> None:
        assert draft.token_budget >= 0
        assert draft.input_budget >= 0
        if draft.new or draft.resumed:  # more run where the limit was lowered under them
            assert len(self.lane.running) <= self.config.max_num_seqs

    def update_from_output(
        self, plan: SchedulerOutput, result: ModelRunnerOutput, now_ms: int
    ) -> dict[str, Finish | None]:
        return self._output_pass.run(plan, result, now_ms, self.on_foreign_finish)

    def update_draft_token_ids(self, request_id: str, drafts: list[int]) -> None:
        """Drafts to verify in the next step; not used with overlap, where the executor has them."""
        assert self.config.num_spec_tokens > 0
        request = self.requests.get(request_id)
        if request is None or request.is_finished or request.is_prefill_chunk:
            return
        request.spec_token_ids = list(drafts)
        self.journal.requests[request_id] = request

    def add_request(self, request: Request) -> None:
        self.lane.add_waiting(request)

    def prepend_requests(self, requests: list[Request]) -> None:
        for request in reversed(requests):
            self.lane.prepend_waiting(request)

    def finish_request(self, request: Request, finish: Finish, now_ms: int) -> None:
        request.set_finished(finish, now_ms)
        self.lane.leave(request)

    def cancel_step(self, plan: SchedulerOutput) -> None:
        self._output_pass.cancel(plan)

    def preempt_all(self, *, drop_output: bool = False) -> None:
        lane = self.lane
        for request in reversed(list(lane.holding)):
            lane.stop_loading(request)
        self._preempt_running(drop_output=drop_output)

    def _preempt_running(self, *, drop_output: bool) -> None:
        running = self.lane.running
        while running:
            self.lane.preempt(running.pop(), drop_output=drop_output)

    def end_generation(self) -> None:
        lane = self.lane
        self.preempt_all()
        for request in self.requests.values():  # those that ended and were still to be sent
            if request.is_finished and request.lane_id == self.lane_id and request.block_ids:
                lane.kv.free(request)
        for forget_all in self.features.rules.forget_all:
            forget_all()
        lane.kv.pool.forget_all()
        lane.finished_ids.clear()  # the executor's table went with the generation
        lane.preempted_ids.clear()

    def release_with_drop(self, request: Request) -> None:
        self.lane.release(request)

    def take_all(self) -> list[Request]:
        lane = self.lane
        assert not lane.running
        taken = [*lane.holding, *lane.waiting]
        for request in taken:
            lane.queue_of(request).remove(request)
            request.drains_elsewhere = request.num_in_flight_tokens > 0
        return taken

    def has_work(self) -> bool:
        lane = self.lane
        if lane.finished_ids or lane.preempted_ids:
            return True
        if self.pause_state is PauseState.PAUSED_ALL:
            return False
        return bool(lane.running or len(lane.waiting) or len(lane.holding))

    def num_tokens_given_back(self) -> int:
        return self.lane.num_tokens_given_back

    def num_free_blocks(self) -> int:
        return self.lane.kv.pool.num_free_blocks

    def num_waiting(self) -> int:
        return len(self.lane.waiting) + len(self.lane.holding)

    def num_unfinished(self) -> int:
        return len(self.lane.running) + self.num_waiting()

    def num_cached_prefix_tokens(self, request: Request) -> int:
        return len(self.lane.kv.get_computed_blocks(request)) * self.config.block_size

    def set_pause_state(self, state: PauseState) -> None:
        self.pause_state = state

    def set_prefill_throttle(self, is_requested: bool) -> None:
        """The next step is one in which prefills are to be held back, if that makes sense."""
        if self.features.throttle is not None:
            self.features.throttle.is_requested = is_requested

    def reset_prefix_cache(self, reset_running: bool) -> bool:
        if reset_running:
            self._preempt_running(drop_output=True)
        return self.lane.kv.pool.reset()

    def scalars(self) -> dict[str, Any]:
        scalars: dict[str, Any] = {
            "step_counter": self._step_counter,
            "finished_ids": self.lane.finished_ids,
            "preempted_ids": self.lane.preempted_ids,
            "prefix_stats": self.prefix_stats.counts,
        }
        return scalars | self.features.scalars()

    def block_rows(self, block_ids: Iterable[int]) -> list[BlockRow]:
        return self.lane.kv.pool.rows(block_ids)

    def touched_block_ids(self) -> list[int]:
        return self.lane.kv.pool.touched_block_ids()

    def restore(
        self, queued: list[Request], blocks: list[BlockRow], scalars: dict[str, Any]
    ) -> None:
        lane = self.lane
        lane.kv.pool.restore(blocks)
        for request in queued:
            lane.kv.restore_registered(request)
            if request.queue is QueueName.RUNNING:
                lane.running.append(request)
            else:
                lane.queue_of(request).restore(request)
        self._step_counter = int(scalars["step_counter"])
        lane.finished_ids = list(scalars["finished_ids"])
        lane.preempted_ids = list(scalars["preempted_ids"])
        self.prefix_stats.counts = list(scalars["prefix_stats"])
        self.features.restore(queued, scalars)
