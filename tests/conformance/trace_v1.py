"""Drives a `unified` scheduler with the inputs of a vLLM V1 trace, and says what it decided.

Knows nothing about comparing (see `replay.py`). Invariant: what it returns has the form of the
trace's own `expect`, keys that are empty left out.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

from scheduler_svc.core.events import PauseState
from scheduler_svc.core.journal import Journal
from scheduler_svc.core.request import MultiModalItem, Request
from scheduler_svc.core.rules.kv_events import BlockRemoved, BlocksStored, KVEvent, KVEventLog
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
from tests.conformance.scripted_connector import ScriptedConnector

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
    "max_concurrent_batches",
    "pipeline_parallel_size",
    "v2_model_runner",
    "max_loras",
    "encoder_compute_budget",
    "encoder_cache_size",
    "disable_chunked_mm_input",
    "kv_load_failure_policy",
)
DERIVED_KEYS = (
    "num_lookahead_tokens",
    "draft_slots_per_request",
    "eagle_drop_last_block",
    "defer_block_free",
    "drop_stale_output_on_preemption",
)
PAUSE_STATES = {
    "UNPAUSED": PauseState.UNPAUSED,
    "PAUSED_NEW": PauseState.PAUSED_NEW,
    "PAUSED_ALL": PauseState.PAUSED_ALL,
}


def without_empty(value: dict[str, Any]) -> dict[str, Any]:
    """A key that is missing inside `expect` means empty (FORMAT.md)."""
    return {k: v for k, v in value.items() if v not in ([], {}, 0, False, None)}


class V1Trace:
    def __init__(self, header: dict[str, Any], *, is_strict: bool = True) -> None:
        config, derived = header["config"], header["derived"]
        self.requests: dict[str, Request] = {}
        self.config = SchedulerConfig(
            **{key: config[key] for key in CONFIG_KEYS},
            **{key: derived[key] for key in DERIVED_KEYS},
            throttles_prefills=True,
            strict=is_strict,
        )
        self.connector = ScriptedConnector() if config["kv_role"] else None
        self.events = KVEventLog() if config["kv_events"] else None
        self.scheduler = UnifiedScheduler(
            "lane",
            self.config,
            self.requests,
            Journal(),
            connector=self.connector,
            listener=self.events,
        )
        self._labels: dict[bytes, int] = {}
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
        request = Request(
            submission,
            block_size=self.config.block_size,
            mm_items=tuple(
                MultiModalItem(item["offset"], item["length"], item["hash"])
                for item in req.get("mm", ())
            ),
            has_grammar=bool(req.get("grammar")),
        )
        request.lane_id = "lane"
        if self.connector is not None:
            self.connector.add(req)
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

    def grammar(self, event: dict[str, Any]) -> dict[str, Any]:
        request = self.requests.get(event["id"])
        if request is None or request.is_finished:
            return {}
        self.scheduler.features.grammar_wait.report(request, is_ready=event["ok"])
        return {"found": True}

    def pause(self, event: dict[str, Any]) -> None:
        self.scheduler.set_pause_state(PAUSE_STATES[event["state"].upper()])

    def reset_prefix_cache(self, event: dict[str, Any]) -> dict[str, Any]:
        is_reset = self.scheduler.reset_prefix_cache(bool(event.get("reset_running")))
        return without_empty({"ok": is_reset})

    def schedule(self, event: dict[str, Any]) -> dict[str, Any]:
        self.scheduler.set_prefill_throttle(event.get("throttle_prefills", False))
        plan = self.scheduler.schedule(StepKey(event["step"], 1), GENERATION)
        draft = self.scheduler.last_draft
        assert draft is not None
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
            "encoder": draft.encoder_inputs,
            "free_mm": draft.freed_encoder_hashes,
            "sync_kv_load": draft.has_sync_load,
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
            first_output_indices=[self._first_index(plan, i) for i in rows],
            sampled_token_ids=[sampled[i] for i in rows],
        )
        if self.connector is not None:
            self.connector.report(event["model"].get("kv", {}))
        before = {i: self.requests[i].num_output_tokens for i in plan.num_scheduled_tokens}
        outputs = self.scheduler.update_from_output(plan, result, now_ms=1)
        self._finished_since |= {i for i, finish in outputs.items() if finish is not None}
        decided = {
            "outputs": [
                self._output(request_id, finish, before.get(request_id, 0))
                for request_id, finish in outputs.items()
            ],
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
        if self.events is not None:
            decided["kv_events"] = [self._event(item) for item in self.events.take()]
        if not any(decided["prefix_stats"]):
            decided["prefix_stats"] = []
        self._finished_since.clear()
        for request_id, drafts in event["model"].get("drafts", {}).items():
            self.scheduler.update_draft_token_ids(request_id, drafts)
        return without_empty(decided | self._memory())

    def _first_index(self, plan: SchedulerOutput, request_id: str) -> int:
        """Where drafts overlap with planning, only the executor knows how many were accepted."""
        if self.config.async_scheduling and self.config.num_spec_tokens:
            return self.requests[request_id].num_output_tokens
        return plan.output_indices[request_id]

    def _output(
        self, request_id: str, finish: Finish | None, num_outputs_before: int
    ) -> dict[str, Any]:
        request = self.requests[request_id]
        tokens = request.output_token_ids[num_outputs_before:]
        row: dict[str, Any] = {"id": request_id, "tokens": tokens}
        if finish is not None:
            row["finish"] = finish.reason.value
            if finish.stop_reason is not None:
                row["stop_reason"] = finish.stop_reason
            if self.connector is not None and request_id in self.connector.sending:
                row["kv_transfer_params"] = {"from": request_id}
        if tokens and request_id not in self._cached_told:
            self._cached_told.add(request_id)
            row["cached_tokens"] = request.num_cached_tokens
        return row

    def _label(self, block_hash: bytes) -> int:
        return self._labels.setdefault(block_hash, len(self._labels))

    def _event(self, event: KVEvent) -> list[Any]:
        match event:
            case BlocksStored():
                parent = None if event.parent_hash is None else self._label(event.parent_hash)
                labels = [self._label(block_hash) for block_hash in event.block_hashes]
                return ["stored", parent, labels, list(event.token_ids)]
            case BlockRemoved():
                return ["removed", [self._label(event.block_hash)]]
            case _:
                return ["cleared"]
