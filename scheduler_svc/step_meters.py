"""What the leader counts after each commit: steps, tokens, and how long requests were where.

Knows the core's records, nothing about pages' readers. Invariant: a step of decodes costs a few
additions, whatever their number; what is done for each request is done when it comes, gets its
first token, or ends. Times are this process's: a request that was here before it has no phases.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from scheduler_svc.core.commit_record import CommitRecord, TakenResult
from scheduler_svc.core.engine_core import EngineCore
from scheduler_svc.core.events import RejectCode
from scheduler_svc.core.request import Request
from segue.meters import Distribution, Meters, Tally
from segue.types import FinishReason, SchedulerOutput

NO_ENGINE = "none"  # of a request that no executor has
PHASES = ("update", "schedule", "commit", "emit")
QUEUE_FULL_REASON = "max_num_queued_reqs"


@dataclass(slots=True)
class _Clock:
    """Seconds, monotonic; 0: not yet."""

    accepted: float
    planned: float = 0.0
    first_token: float = 0.0


class _Engine:
    """The cells of one executor."""

    def __init__(self, meters: Meters, engine: str) -> None:
        def tally(name: str, **labels: str) -> Tally:
            return meters.tally(name, engine=engine, **labels)

        def distribution(name: str) -> Distribution:
            return meters.distribution(name, engine=engine)

        self.queries = tally("vllm:prefix_cache_queries")
        self.hits = tally("vllm:prefix_cache_hits")
        self.preemptions = tally("vllm:num_preemptions")
        self.prompt_tokens = tally("vllm:prompt_tokens")
        self.computed_tokens = tally("vllm:prompt_tokens_by_source", source="local_compute")
        self.hit_tokens = tally("vllm:prompt_tokens_by_source", source="local_cache_hit")
        self.cached_tokens = tally("vllm:prompt_tokens_cached")
        self.generation_tokens = tally("vllm:generation_tokens")
        self.iteration_tokens = distribution("vllm:iteration_tokens_total")
        self.queue_time = distribution("vllm:request_queue_time_seconds")
        self.prefill_time = distribution("vllm:request_prefill_time_seconds")
        self.decode_time = distribution("vllm:request_decode_time_seconds")
        self.inference_time = distribution("vllm:request_inference_time_seconds")
        self.request_preemptions = distribution("vllm:request_num_preemptions")
        self.prefill_computed = distribution("vllm:request_prefill_kv_computed_tokens")
        self.drafts = tally("vllm:spec_decode_num_drafts")
        self.draft_tokens = tally("vllm:spec_decode_num_draft_tokens")
        self.accepted_tokens = tally("vllm:spec_decode_num_accepted_tokens")
        self.accepted_of_draft = distribution("segue:draft_accepted_tokens")
        self.swapped_out = tally("segue:swapped_blocks", direction="out")
        self.swapped_in = tally("segue:swapped_blocks", direction="in")


class StepMeters:
    def __init__(self, meters: Meters, *, has_prefix_cache: bool) -> None:
        self._meters = meters
        self._has_prefix_cache = has_prefix_cache
        self._engines: dict[str, _Engine] = {}
        self._num_lanes = 0
        self._clocks: dict[str, _Clock] = {}
        self._phases = [meters.distribution("segue:step_phase_seconds", phase=p) for p in PHASES]
        self._finished = {
            reason: meters.tally("segue:requests_finished", finished_reason=reason.value)
            for reason in FinishReason
        }
        self._rejected = {
            code: meters.tally("segue:requests_rejected", code=code.value) for code in RejectCode
        }
        self._queue_full = meters.tally("vllm:admission_rejections", reason=QUEUE_FULL_REASON)

    def note_turn(self, *phase_s: float) -> None:
        """CPU of one turn of the loop, in the order of PHASES."""
        for phase, seconds in zip(self._phases, phase_s, strict=True):
            phase.observe(seconds)

    def note_rejection(self, code: RejectCode) -> None:
        self._rejected[code].add()
        if code is RejectCode.QUEUE_FULL:
            self._queue_full.add()

    def note_commit(self, core: EngineCore) -> None:
        """The commit that `core.last_record` and `core.last_plans` tell of is done."""
        record, now = core.last_record, time.monotonic()
        if self._num_lanes != len(core.state.lanes):
            self._num_lanes = len(core.state.lanes)
            for executor_id in core.state.lanes:
                self._engine(executor_id)
        for request in record.accepted:
            self._clocks[request.request_id] = _Clock(now)
        for taken in record.results:
            self._note_result(core, taken, now)
        for executor_id, step in core.last_plans:
            self._note_plan(core, self._engine(executor_id), step.plan, now)
        self._note_ends(record, now)

    def _engine(self, executor_id: str) -> _Engine:
        engine = self._engines.get(executor_id)
        if engine is None:
            engine = self._engines[executor_id] = _Engine(self._meters, executor_id)
        return engine

    def _note_plan(
        self, core: EngineCore, engine: _Engine, plan: SchedulerOutput, now: float
    ) -> None:
        for new in plan.scheduled_new_reqs:
            request = core.state.requests[new.request_id]
            clock = self._clocks.get(new.request_id)
            if clock is not None and not clock.planned:
                clock.planned = now
            reads_cache = not request.submission.skip_reading_prefix_cache
            if self._has_prefix_cache and reads_cache:
                engine.queries.add(len(new.token_ids))
                engine.hits.add(request.num_cached_tokens or 0)
        if plan.preempted_req_ids:
            engine.preemptions.add(len(plan.preempted_req_ids))
        if plan.swap_out:
            engine.swapped_out.add(len(plan.swap_out))
        if plan.swap_in:
            engine.swapped_in.add(len(plan.swap_in))

    def _note_result(self, core: EngineCore, taken: TakenResult, now: float) -> None:
        engine = self._engine(taken.executor_id)
        result, outputs = taken.result, taken.outputs
        num_computed = 0
        if 0 in result.first_output_indices:
            for request_id, index in zip(
                result.request_ids, result.first_output_indices, strict=True
            ):
                if index == 0 and request_id in outputs:
                    request = core.state.requests[request_id]
                    num_computed += self._note_first_token(engine, request, now)
        num_generated = len(outputs) - len(outputs.keys() & result.row_errors.keys())
        if taken.plan.draft_token_ids:
            num_generated += self._note_drafts(engine, taken)
        engine.generation_tokens.add(num_generated)
        if num_computed or num_generated:
            engine.iteration_tokens.observe(num_computed + num_generated)

    def _note_first_token(self, engine: _Engine, request: Request, now: float) -> int:
        """Its prompt is through; returns how much of it was computed."""
        clock = self._clocks.get(request.request_id)
        if clock is not None:
            clock.first_token = now
        num_cached = min(request.num_cached_tokens or 0, request.num_prompt_tokens)
        num_computed = request.num_prompt_tokens - num_cached
        engine.prompt_tokens.add(request.num_prompt_tokens)
        engine.computed_tokens.add(num_computed)
        engine.hit_tokens.add(num_cached)
        engine.cached_tokens.add(num_cached)
        return num_computed

    def _note_drafts(self, engine: _Engine, taken: TakenResult) -> int:
        """Returns the generated tokens beyond one for each row."""
        result, num_beyond = taken.result, 0
        verified = dict(zip(result.request_ids, result.num_verified_drafts, strict=False))
        rows = zip(
            result.request_ids, result.first_output_indices, result.sampled_token_ids, strict=True
        )
        for request_id, first_index, tokens in rows:
            if request_id not in taken.outputs or not tokens:
                continue
            finish = taken.outputs[request_id]
            end = finish.usage.num_output_tokens if finish else first_index + len(tokens)
            num_beyond += end - first_index - 1
            num_planned = len(taken.plan.draft_token_ids.get(request_id, ()))
            num_drafts = verified.get(request_id, num_planned)  # there may have been none to make
            if num_drafts:
                self._note_draft(engine, taken.executor_id, num_drafts, len(tokens) - 1)
        return num_beyond

    def _note_draft(
        self, engine: _Engine, executor_id: str, num_drafts: int, num_accepted: int
    ) -> None:
        engine.drafts.add()
        engine.draft_tokens.add(num_drafts)
        engine.accepted_tokens.add(num_accepted)
        engine.accepted_of_draft.observe(num_accepted)
        for position in range(num_drafts):
            name = "vllm:spec_decode_num_accepted_tokens_per_pos"
            tally = self._meters.tally(name, engine=executor_id, position=str(position))
            tally.add(position < num_accepted)

    def _note_ends(self, record: CommitRecord, now: float) -> None:
        for request in record.ended:
            assert request.finish is not None
            self._finished[request.finish.reason].add()
            clock = self._clocks.pop(request.request_id, None)
            engine = self._engine(request.lane_id or NO_ENGINE)
            engine.request_preemptions.observe(request.num_preemptions)
            num_cached = min(request.num_cached_tokens or 0, request.num_prompt_tokens)
            engine.prefill_computed.observe(request.num_prompt_tokens - num_cached)
            if clock is None or not clock.planned:
                continue
            engine.queue_time.observe(clock.planned - clock.accepted)
            engine.inference_time.observe(now - clock.planned)
            if clock.first_token:
                engine.prefill_time.observe(clock.first_token - clock.planned)
                engine.decode_time.observe(now - clock.first_token)
