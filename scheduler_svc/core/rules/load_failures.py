"""Blocks that failed to load: their requests go back to the first bad one, or end (spec 11.5).

Knows nothing about transfers. Invariant: after `apply`, no request counts a token as computed whose
KV is in a bad block, except where an earlier request of the same step computes that block again.
"""

from __future__ import annotations

from collections.abc import Mapping

from scheduler_svc.core.request import Request
from scheduler_svc.core.unified.lane_state import LaneState


class LoadFailures:
    def __init__(self, lane: LaneState) -> None:
        self._lane = lane
        self._fails_requests = lane.config.kv_load_failure_policy == "fail"

    def apply(
        self, invalid_block_ids: frozenset[int], num_scheduled_tokens: Mapping[str, int]
    ) -> tuple[set[str], list[Request]]:
        """Returns the ids whose output is to be passed over, and the requests to end."""
        loading = [request for request in self._lane.holding if request.is_loading]
        failed_loads = self._cut_all(loading, invalid_block_ids, {})
        running = self._lane.running
        failed_running = self._cut_all(running, invalid_block_ids, num_scheduled_tokens)
        passed_over = {request.request_id for request in failed_running}
        if self._fails_requests:
            return passed_over, [*failed_loads, *failed_running]
        return passed_over, []

    def _cut_all(
        self,
        requests: list[Request],
        invalid_block_ids: frozenset[int],
        num_scheduled_tokens: Mapping[str, int],
    ) -> list[Request]:
        recomputed: set[int] = set()
        to_evict: list[int] = []
        affected: list[Request] = []
        for request in requests:
            num_scheduled = num_scheduled_tokens.get(request.request_id, 0)
            num_computed = request.num_computed_tokens - num_scheduled
            num_blocks = -(-num_computed // self._lane.config.block_size)
            table = request.block_ids[:num_blocks]
            bad = [index for index, block_id in enumerate(table) if block_id in invalid_block_ids]
            if not bad:
                continue
            affected.append(request)
            own = [index for index in bad if table[index] not in recomputed]
            recomputed.update(table[index] for index in own)
            if own:
                num_computed = own[0] * self._lane.config.block_size
                to_evict += request.block_ids[own[0] :]
            request.num_computed_tokens = num_computed
            request.num_output_placeholders = 0
            self._lane.journal.requests[request.request_id] = request
        if self._fails_requests and requests is self._lane.running:
            self._lane.kv.evict(to_evict)
        return affected
