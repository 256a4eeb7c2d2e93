"""Requests whose KV comes from elsewhere, or is sent elsewhere (specification 11.1, 11.2, 11.6).

Knows nothing about transfers themselves (the connector does) or about failed loads (see
`load_failures.py`). Invariant: a request that is loading holds its blocks until the load's end was
reported, also if it has ended itself; it takes no running slot and no budget.
"""

from __future__ import annotations

from collections.abc import Mapping

from scheduler_svc.core.request import QueueName, Request, RequestStatus
from scheduler_svc.core.rules.kv_connector import ExternalHit, KVConnector, TransferReport
from scheduler_svc.core.rules.rule import Rule, Verdict
from scheduler_svc.core.unified.lane_state import LaneState
from scheduler_svc.core.unified.step_draft import StepDraft

NOTHING = ExternalHit(0, is_async=False)


class RemoteKV(Rule):
    def __init__(self, lane: LaneState, connector: KVConnector) -> None:
        self._lane = lane
        self.connector = connector
        lane.keeps_blocks = self.keeps_blocks

    def check(self, request: Request, draft: StepDraft) -> Verdict:
        del draft
        if request.status is not RequestStatus.WAITING_FOR_REMOTE_KVS:
            return Verdict.PASS
        if not request.is_load_finished:
            return Verdict.SKIP
        self._take_over(request)
        return Verdict.PASS

    def look_up(self, request: Request, num_local_tokens: int) -> ExternalHit | None:
        """What comes on top of the local hit; None: not known yet, so the request waits."""
        if request.submission.skip_reading_prefix_cache:
            return NOTHING
        return self.connector.look_up(request, num_local_tokens)

    def start_load(self, request: Request, num_computed: int) -> None:
        """The request has blocks for all that is loaded, and waits with them."""
        request.status = RequestStatus.WAITING_FOR_REMOTE_KVS
        request.is_loading = True
        request.num_computed_tokens = num_computed

    def num_reserved_blocks(self, draft: StepDraft) -> int:
        """What prefills in flight, loads included, will still need (11.3)."""
        lane, config = self._lane, self._lane.config
        per_step = 0
        if config.num_spec_tokens:
            per_step = 1 + config.num_spec_tokens + config.num_lookahead_tokens
        reserved = -(-per_step // config.block_size)
        for request in (*lane.running, *lane.holding, *draft.put_aside):
            if self._is_prefilling(request, draft):
                end = min(request.num_tokens, config.max_model_len) + per_step
                reserved += max(0, -(-end // config.block_size) - len(request.block_ids))
        return reserved

    def _is_prefilling(self, request: Request, draft: StepDraft) -> bool:
        if request.queue is not QueueName.RUNNING:
            return bool(request.block_ids)
        if request in draft.new or request in draft.resumed:
            num_tokens = draft.num_scheduled_tokens[request.request_id]
            return request.num_computed_tokens + num_tokens < request.num_tokens
        return request.is_prefill_chunk

    def keeps_blocks(self, request: Request) -> bool:
        """Whether a request that ends now holds its blocks until a transfer has ended."""
        is_kept = request.is_loading and not request.is_load_finished
        return self.connector.keeps_blocks(request) or is_kept

    def take_finished(self, report: TransferReport, requests: Mapping[str, Request]) -> None:
        for request_id in report.finished_recving:
            request = requests[request_id]
            if request.is_finished:
                self._lane.free_blocks(request)
            else:
                request.is_load_finished = True
                self._lane.journal.requests[request_id] = request
        for request_id in report.finished_sending:
            self._lane.free_blocks(requests[request_id])

    def left(self, request: Request) -> None:
        request.is_loading = False
        request.is_load_finished = False

    def _take_over(self, request: Request) -> None:
        """The load is done: what is valid counts as computed, but never the last token (11.2)."""
        kv = self._lane.kv
        if request.num_computed_tokens == 0:
            kv.free(request)
            request.num_cached_tokens = None  # it starts over
        else:
            kv.register_full_blocks(request, request.num_computed_tokens)
        if request.num_computed_tokens == request.num_tokens:
            request.num_computed_tokens -= 1
        self.left(request)
        request.status = RequestStatus.WAITING
        if request.num_preemptions > 0:
            request.status = RequestStatus.PREEMPTED
        self._lane.journal.requests[request.request_id] = request
