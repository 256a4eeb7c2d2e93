"""Drives a `three_queue` scheduler with the inputs of a vLLM V0 trace, and says what it decided.

Knows nothing about comparing (see `replay.py`). Invariant: what it returns has the form of the
trace's own `expect`, keys that are empty left out.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

from scheduler_svc.core.journal import Journal
from scheduler_svc.core.request import Request
from scheduler_svc.core.three_queue.config import ThreeQueueConfig
from scheduler_svc.core.three_queue.scheduler import ThreeQueueScheduler
from scheduler_svc.core.three_queue.step_draft import ScheduledRow, StepDraft
from segue.types import (
    Finish,
    FinishReason,
    Generation,
    ModelRunnerOutput,
    SamplingParams,
    SchedulerOutput,
    StepKey,
    Submission,
    Usage,
)
from tests.conformance.trace_v1 import without_empty

GENERATION = Generation(1, 1)
CONFIG_KEYS = (
    "block_size",
    "num_gpu_blocks",
    "num_cpu_blocks",
    "enable_prefix_caching",
    "watermark",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "policy",
    "enable_chunked_prefill",
    "preemption_mode",
    "delay_factor",
    "num_lookahead_slots",
    "max_loras",
)


class V0Trace:
    def __init__(self, header: dict[str, Any], *, is_strict: bool = True) -> None:
        config = header["config"]
        self.requests: dict[str, Request] = {}
        self.config = ThreeQueueConfig(
            **{key: config[key] for key in CONFIG_KEYS}, strict=is_strict
        )
        self.scheduler = ThreeQueueScheduler("lane", self.config, self.requests, Journal())
        self._plans: dict[int, SchedulerOutput] = {}

    def add(self, event: dict[str, Any]) -> None:
        req = event["req"]
        params = SamplingParams(
            seed=0,
            max_tokens=req["max_tokens"],
            min_tokens=req.get("min_tokens", 0),
            eos_token_id=req["eos"],
            stop_token_ids=tuple(req.get("stop_token_ids", ())),
        )
        submission = Submission(
            req["id"],
            tuple(req["prompt"]),
            params,
            arrival_unix_ms=round(req["arrival"] * 1000),
            priority=req.get("priority", 0),
            adapter=str(req["lora"]) if req.get("lora") else "",
        )
        request = Request(submission, block_size=self.config.block_size)
        request.lane_id = "lane"
        self.requests[request.request_id] = request
        self.scheduler.add_request(request)

    def abort(self, event: dict[str, Any]) -> dict[str, Any]:
        request = self.requests.get(event["id"])
        if request is None or request.is_finished:
            return {}
        finish = Finish(FinishReason.ABORT, Usage(request.num_prompt_tokens, 0))
        self.scheduler.finish_request(request, finish, 0)
        return {"found": True}

    def schedule(self, event: dict[str, Any]) -> dict[str, Any]:
        self.scheduler.clock_ms = round(event["now"] * 1000)
        plan = self.scheduler.schedule(StepKey(event["step"], 1), GENERATION)
        draft = self.scheduler.last_draft
        assert draft is not None
        self._plans[event["step"]] = plan
        budget = draft.budget
        decided = {
            "scheduled": [self._row(row, plan, draft) for row in draft.rows],
            "num_prefill_groups": draft.num_prefills,
            "num_batched_tokens": budget.num_batched_tokens + budget.num_cached_tokens,
            "num_lookahead_slots": plan.num_lookahead_slots,
            "swap_in": [list(pair) for pair in plan.swap_in],
            "swap_out": [list(pair) for pair in plan.swap_out],
            "ignored": self.scheduler.take_ignored(),
            "preempted": [[request_id, mode.value] for request_id, mode in draft.preemptions],
            "preempted_count": len(draft.recomputed) + len(draft.swapped_out),
            "finished": plan.finished_req_ids,
        }
        return without_empty(decided | self._state())

    def _row(self, row: ScheduledRow, plan: SchedulerOutput, draft: StepDraft) -> dict[str, Any]:
        request = row.request
        num_tokens = row.num_tokens + row.num_cached
        cached_blocks = self._num_cached_blocks(row, draft)
        decided = {
            "id": request.request_id,
            "n": num_tokens,
            "prompt": row.is_prefill,
            "sample": request.request_id in plan.output_indices,
            "computed": request.num_computed_tokens - num_tokens,
            "blocks": list(request.block_ids),
        }
        return decided | ({"cached_blocks": cached_blocks} if cached_blocks else {})

    def _num_cached_blocks(self, row: ScheduledRow, draft: StepDraft) -> int:
        """The leading blocks that were cached and computed before this step."""
        tables, request = self.scheduler.lane.tables, row.request
        if not self.config.enable_prefix_caching:
            return 0
        if row.is_prefill:
            hits = tables.remembered_hits.get(request.request_id, row.num_cached)
            return hits // self.config.block_size
        count = 0
        for block_hash in request.block_hashes:
            block = tables.gpu.lookup(block_hash)
            if block is None or block.block_id in draft.fresh_block_ids:
                break
            count += 1
        return count

    def _state(self) -> dict[str, Any]:
        lane = self.scheduler.lane
        gpu = lane.tables.gpu
        state: dict[str, Any] = {
            "free_gpu": gpu.num_free,
            "free_cpu": lane.tables.cpu.num_free,
            "free_crc": _crc(gpu.free_block_ids()),
            "waiting_q": [request.request_id for request in lane.waiting],
            "running_q": [request.request_id for request in lane.running],
            "swapped_q": [request.request_id for request in lane.swapped],
        }
        if self.config.enable_prefix_caching:
            evictable = sorted(b.block_id for b in gpu.cached.values() if b.ref_cnt == 0)
            state["evictable"] = len(evictable)
            state["evict_crc"] = _crc(evictable)
            state["cached"] = len(gpu.cached)
        return state

    def update(self, event: dict[str, Any]) -> dict[str, Any]:
        plan = self._plans.pop(event["step"])
        sampled = event["model"].get("sampled", {})
        rows = [i for i in plan.num_scheduled_tokens if i in sampled]
        result = ModelRunnerOutput(
            plan.step_id,
            GENERATION,
            request_ids=rows,
            first_output_indices=[plan.output_indices[i] for i in rows],
            sampled_token_ids=[sampled[i] for i in rows],
        )
        before = {i: self.requests[i].num_output_tokens for i in plan.num_scheduled_tokens}
        outputs = self.scheduler.update_from_output(plan, result, now_ms=0)
        decided = {"outputs": [self._output(i, finish, before[i]) for i, finish in outputs.items()]}
        return without_empty(decided | self._state())

    def _output(
        self, request_id: str, finish: Finish | None, num_outputs_before: int
    ) -> dict[str, Any]:
        request = self.requests[request_id]
        row: dict[str, Any] = {
            "id": request_id,
            "tokens": request.output_token_ids[num_outputs_before:],
        }
        if finish is not None:
            row["finish"] = finish.reason.value
            if finish.stop_reason is not None:
                row["stop_reason"] = finish.stop_reason
        return row


def _crc(block_ids: list[int]) -> int:
    return crc32(",".join(map(str, block_ids)).encode())
