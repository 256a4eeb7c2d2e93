"""Drives a `unified` scheduler with the inputs of a vLLM V1 trace, and says what it decided.

Knows nothing about comparing (see `replay.py`). Invariant: what it returns has the form of the
trace's own `expect`, keys that are empty left out.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

from scheduler_svc.core.events import PauseState
from scheduler_svc.core.journal import Journal
from scheduler_svc.core.request import Request
from scheduler_svc.core.scheduler_config import SchedulerConfig
from scheduler_svc.core.unified.scheduler import UnifiedScheduler
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

GENERATION = Generation(1, 1)
CONFIG_KEYS = (
    "block_size",
    "num_gpu_blocks",
    "enable_prefix_caching",
    "max_num_seqs",
    "max_num_active_seqs",
    "max_num_batched_tokens",
    "max_num_scheduled_tokens",
    "max_model_len",
    "policy",
    "enable_chunked_prefill",
    "long_prefill_token_threshold",
    "long_prefill_token_threshold_adaptive",
    "scheduler_reserve_full_isl",
    "watermark",
    "async_scheduling",
    "num_spec_tokens",
)
DERIVED_KEYS = ("num_lookahead_tokens", "draft_slots_per_request", "eagle_drop_last_block")
PAUSE_STATES = {
    "UNPAUSED": PauseState.UNPAUSED,
    "PAUSED_NEW": PauseState.PAUSED_NEW,
    "PAUSED_ALL": PauseState.PAUSED_ALL,
}


def without_empty(value: dict[str, Any]) -> dict[str, Any]:
    """A key that is missing inside `expect` means empty (FORMAT.md)."""
    return {k: v for k, v in value.items() if v not in ([], {}, 0, False, None)}


class V1Trace:
    def __init__(self, header: dict[str, Any]) -> None:
        config, derived = header["config"], header["derived"]
        self.requests: dict[str, Request] = {}
        self.config = SchedulerConfig(
            **{key: config[key] for key in CONFIG_KEYS},
            **{key: derived[key] for key in DERIVED_KEYS},
            strict=True,
        )
        self.scheduler = UnifiedScheduler("lane", self.config, self.requests, Journal())
        self._plans: dict[int, SchedulerOutput] = {}
        self._finished_since: set[str] = set()
        self._cached_told: set[str] = set()

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
            cache_salt=req.get("cache_salt") or "",
            adapter=str(req["lora"]) if req.get("lora") else "",
            skip_reading_prefix_cache=bool(req.get("skip_reading_prefix_cache")),
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
        self._finished_since.add(request.request_id)
        return {"found": True}

    def pause(self, event: dict[str, Any]) -> None:
        self.scheduler.set_pause_state(PAUSE_STATES[event["state"].upper()])

    def reset_prefix_cache(self, event: dict[str, Any]) -> dict[str, Any]:
        is_reset = self.scheduler.reset_prefix_cache(bool(event.get("reset_running")))
        return without_empty({"ok": is_reset})

    def schedule(self, event: dict[str, Any]) -> dict[str, Any]:
        plan = self.scheduler.schedule(StepKey(event["step"], 1), GENERATION)
        self._plans[event["step"]] = plan
        counts = plan.num_scheduled_tokens
        cached = plan.scheduled_cached_reqs
        columns = zip(
            cached.request_ids, cached.num_computed_tokens, cached.new_block_ids, strict=True
        )
        decided = {
            "order": list(counts),
            "total": plan.total_num_scheduled_tokens,
            "new": [self._whole(row, counts) for row in plan.scheduled_new_reqs],
            "resumed": [self._whole(row, counts) for row in plan.scheduled_resumed_reqs],
            "running": [
                {"id": i, "computed": c, "n": counts[i]} | ({"new_blocks": list(b)} if b else {})
                for i, c, b in columns
            ],
            "spec": plan.draft_token_ids,
            "preempted": plan.preempted_req_ids,
            "finished": sorted(plan.finished_req_ids),
            "running_q": [request.request_id for request in self.scheduler.lane.running],
        }
        return without_empty(decided | self._memory())

    def _whole(self, row: Any, counts: dict[str, int]) -> dict[str, Any]:
        return {
            "id": row.request_id,
            "computed": row.num_computed_tokens,
            "n": counts[row.request_id],
            "blocks": list(row.block_ids),
        }

    def _memory(self) -> dict[str, Any]:
        lane = self.scheduler.lane
        pool = lane.kv.pool
        order = ",".join(str(block.block_id) for block in pool.free_queue.in_order())
        return {
            "free": pool.num_free_blocks,
            "free_crc": crc32(order.encode()),
            "cached": pool.num_cached_hashes,
            "waiting_q": [request.request_id for request in lane.waiting],
            "holding_q": [request.request_id for request in lane.holding],
            "deferred": sorted(
                request.request_id
                for request in (*lane.waiting, *lane.holding)
                if request.is_deferred
            ),
        }

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
        outputs = self.scheduler.update_from_output(plan, result, now_ms=1)
        self._finished_since |= {o.request_id for o in outputs if o.finish}
        decided = {
            "outputs": [self._output(output) for output in outputs],
            "finished_set": sorted(self._finished_since),
            "prefix_stats": self.scheduler.prefix_stats.take(),
            "running_q": [
                [
                    request.request_id,
                    request.num_computed_tokens,
                    request.num_tokens,
                    request.num_output_placeholders,
                ]
                for request in self.scheduler.lane.running
            ],
        }
        if not any(decided["prefix_stats"]):
            decided["prefix_stats"] = []
        self._finished_since.clear()
        for request_id, drafts in event["model"].get("drafts", {}).items():
            self.scheduler.update_draft_token_ids(request_id, drafts)
        return without_empty(decided | self._memory())

    def _output(self, output: Any) -> dict[str, Any]:
        row: dict[str, Any] = {"id": output.request_id, "tokens": list(output.new_token_ids)}
        if output.finish is not None:
            row["finish"] = output.finish.reason.value
            if output.finish.stop_reason is not None:
                row["stop_reason"] = output.finish.stop_reason
        if output.request_id not in self._cached_told:
            self._cached_told.add(output.request_id)
            row["cached_tokens"] = output.num_cached_tokens
        return row
