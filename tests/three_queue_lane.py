"""A `three_queue` lane with an executor that keeps its KV cache as tokens, and believes nothing.

Knows nothing about the engine. Invariant: each step copies out, in, then writes, then reads, and
fails if a slot that a request reads does not hold what stands before it in that request.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scheduler_svc.core.journal import Journal
from scheduler_svc.core.request import QueueName, Request
from scheduler_svc.core.three_queue.config import ThreeQueueConfig
from scheduler_svc.core.three_queue.scheduler import ThreeQueueScheduler
from segue.types import Finish, ModelRunnerOutput, NewRequestData, SchedulerOutput, StepKey
from tests.factories import GENERATION, make_submission


def make_v0_config(**fields: Any) -> ThreeQueueConfig:
    """Small, unless the test says otherwise."""
    defaults: dict[str, Any] = {
        "block_size": 4,
        "num_gpu_blocks": 32,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "max_model_len": 64,
    }
    return ThreeQueueConfig(**(defaults | fields))


def next_token(token_ids: Sequence[int]) -> int:
    """The model: depends on each token before, and says EOS now and then."""
    return 3 + sum((i + 1) * t for i, t in enumerate(token_ids)) % 5


@dataclass(slots=True)
class HeldRequest:
    token_ids: list[int]
    num_computed: int
    block_ids: list[int]


class TokenKVExecutor:
    """A slot holds the hash of all tokens up to it: wrong KV is seen at once.

    A `strict` scheduler has it read wrong KV now and then, as V0 does; that is let pass.
    """

    def __init__(self, config: ThreeQueueConfig) -> None:
        self._size = config.block_size
        self._checks_reads = not config.strict
        self._gpu: dict[int, int] = {}
        self._cpu: dict[int, int] = {}
        self.held: dict[str, HeldRequest] = {}

    def execute(self, plan: SchedulerOutput) -> dict[str, int]:
        self._copy(plan.swap_out, self._gpu, self._cpu)
        self._copy(plan.swap_in, self._cpu, self._gpu)
        self._apply(plan)
        for request_id, num_tokens in plan.num_scheduled_tokens.items():
            self._write(self.held[request_id], num_tokens)
        for request_id in plan.num_scheduled_tokens:
            self._check_reads(self.held[request_id])
        return {
            request_id: self._sample(self.held[request_id]) for request_id in plan.output_indices
        }

    def _copy(
        self, pairs: list[tuple[int, int]], source: dict[int, int], target: dict[int, int]
    ) -> None:
        copied = [
            (to * self._size + i, source.get(of * self._size + i, 0))
            for of, to in pairs
            for i in range(self._size)
        ]
        target.update(copied)

    def _apply(self, plan: SchedulerOutput) -> None:
        for request_id in (*plan.preempted_req_ids, *plan.finished_req_ids):
            self.held.pop(request_id, None)
        for new in (*plan.scheduled_new_reqs, *plan.scheduled_resumed_reqs):
            self._add(new)
        cached = plan.scheduled_cached_reqs
        for request_id, block_ids, num_computed in zip(
            cached.request_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True
        ):
            assert self.held[request_id].num_computed == num_computed
            self.held[request_id].block_ids += block_ids

    def _add(self, new: NewRequestData) -> None:
        assert new.request_id not in self.held
        assert new.num_computed_tokens < len(new.token_ids)
        self.held[new.request_id] = HeldRequest(
            list(new.token_ids), new.num_computed_tokens, list(new.block_ids)
        )

    def _slot(self, held: HeldRequest, position: int) -> int:
        return held.block_ids[position // self._size] * self._size + position % self._size

    def _write(self, held: HeldRequest, num_tokens: int) -> None:
        assert num_tokens > 0
        end = held.num_computed + num_tokens
        assert end <= len(held.token_ids)
        for position in range(held.num_computed, end):
            self._gpu[self._slot(held, position)] = hash(tuple(held.token_ids[: position + 1]))
        held.num_computed = end

    def _check_reads(self, held: HeldRequest) -> None:
        for position in range(held.num_computed if self._checks_reads else 0):
            expected = hash(tuple(held.token_ids[: position + 1]))
            assert self._gpu.get(self._slot(held, position)) == expected, "reads wrong KV"

    def _sample(self, held: HeldRequest) -> int:
        assert held.num_computed == len(held.token_ids)
        token = next_token(held.token_ids)
        held.token_ids.append(token)
        return token


class ThreeQueueLane:
    def __init__(self, config: ThreeQueueConfig) -> None:
        self.config = config
        self.requests: dict[str, Request] = {}
        self.journal = Journal()
        self.scheduler = ThreeQueueScheduler("e0", config, self.requests, self.journal)
        self.executor = TokenKVExecutor(config)
        self.planned: SchedulerOutput | None = None
        self.step_id = 0
        self.now_ms = 0

    def add(self, request_id: str, prompt: Sequence[int], **fields: Any) -> Request:
        submission = make_submission(request_id, prompt, **fields)
        request = Request(submission, block_size=self.config.block_size)
        request.lane_id = "e0"
        self.requests[request_id] = request
        self.scheduler.add_request(request)
        return request

    def plan(self) -> SchedulerOutput:
        assert self.planned is None
        self.step_id += 1
        self.now_ms += 10
        self.planned = self.scheduler.schedule(StepKey(self.step_id, 1), GENERATION)
        return self.planned

    def answer(self) -> dict[str, Finish | None]:
        plan = self.planned
        assert plan is not None
        self.planned = None
        tokens = self.executor.execute(plan)
        rows = list(plan.output_indices)
        result = ModelRunnerOutput(
            plan.step_id,
            GENERATION,
            rows,
            [plan.output_indices[i] for i in rows],
            [[tokens[i]] for i in rows],
        )
        return self.scheduler.update_from_output(plan, result, self.now_ms)

    def step(self) -> SchedulerOutput:
        plan = self.plan()
        self.answer()
        self.check()
        return plan

    def lose_generation(self) -> None:
        if self.planned is not None:
            self.scheduler.cancel_step(self.planned)
            self.planned = None
        self.scheduler.end_generation()
        self.executor = TokenKVExecutor(self.config)

    def check(self) -> None:
        """References are tables; what is free is not in use; each is in one queue (I7)."""
        lane, tables = self.scheduler.lane, self.scheduler.lane.tables
        gpu = Counter[int]()
        for request in self.requests.values():
            gpu.update(request.block_ids)
            assert not request.is_finished or request.queue is None
            assert request.queue is QueueName.RUNNING or not request.block_ids
        assert {b.block_id: b.ref_cnt for b in tables.gpu.blocks if b.ref_cnt} == dict(gpu)
        cpu = Counter(b for table in tables.cpu_tables.values() for b in table)
        assert {b.block_id: b.ref_cnt for b in tables.cpu.blocks if b.ref_cnt} == dict(cpu)
        assert tables.cpu_tables.keys() == {request.request_id for request in lane.swapped}
        for queue in (lane.waiting, lane.running, lane.swapped):
            ranks = [request.queue_rank for request in queue]
            assert ranks == sorted(set(ranks))
            assert all(request.queue is queue.name for request in queue)
            assert not any(request.is_finished for request in queue)

    def restored(self) -> ThreeQueueLane:
        """A second lane, made only of what a store would have."""
        other = ThreeQueueLane(self.config)
        other.requests.update(copy.deepcopy(self.requests))
        queued = [request for request in other.requests.values() if request.queue is not None]
        queued.sort(key=lambda request: request.queue_rank)
        for request in queued:
            request.num_registered_blocks = 0
        scalars = json.loads(json.dumps(self.scheduler.scalars()))
        blocks = list(self.scheduler.block_rows(self.scheduler.touched_block_ids()))
        other.scheduler.restore(queued, blocks, scalars)
        other.scheduler.set_pause_state(self.scheduler.pause_state)
        other.executor = copy.deepcopy(self.executor)
        other.planned, other.step_id, other.now_ms = self.planned, self.step_id, self.now_ms
        return other
