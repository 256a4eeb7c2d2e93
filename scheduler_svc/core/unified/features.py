"""Which features a `unified` lane has: the one list of rules, in the order in which they decide.

Knows nothing about steps. Invariant: a feature that is off is not in the list, so it costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scheduler_svc.core.request import Request
from scheduler_svc.core.rules.adapter_limit import AdapterLimit
from scheduler_svc.core.rules.admission_preemption import AdmissionPreemption
from scheduler_svc.core.rules.deferred_free import DeferredFrees
from scheduler_svc.core.rules.encoder_budget import EncoderBudget
from scheduler_svc.core.rules.grammar_wait import GrammarWait
from scheduler_svc.core.rules.kv_connector import KVConnector
from scheduler_svc.core.rules.load_failures import LoadFailures
from scheduler_svc.core.rules.pipeline_stagger import PipelineStagger
from scheduler_svc.core.rules.prefill_throttle import PrefillThrottle
from scheduler_svc.core.rules.remote_kv import RemoteKV
from scheduler_svc.core.rules.rule import Rule, RuleBook
from scheduler_svc.core.rules.stale_output import StaleOutputWait
from scheduler_svc.core.unified.lane_state import LaneState


class Features:
    """The rules, and those of them that somebody outside talks to."""

    def __init__(
        self, lane: LaneState, connector: KVConnector | None, extra_rules: Sequence[Rule] = ()
    ) -> None:
        config = lane.config
        if config.preempt_for_admission and connector is not None:
            raise ValueError("preempt_for_admission does not know of KV from elsewhere")
        self.grammar_wait = GrammarWait(lane.journal)
        self.throttle = PrefillThrottle(lane) if config.throttles_prefills else None
        self.remote_kv = RemoteKV(lane, connector) if connector is not None else None
        self.load_failures = LoadFailures(lane)
        self.deferred_frees = DeferredFrees(lane.kv) if config.defer_block_free else None
        if self.deferred_frees is not None:
            lane.free_blocks = self.deferred_frees.free
        self.rules = RuleBook([*self._in_order(lane), *extra_rules])
        lane.left = self.rules.left

    def _in_order(self, lane: LaneState) -> list[Rule]:
        config = lane.config
        rules: list[Rule | None] = [
            self.remote_kv,
            self.grammar_wait,
            StaleOutputWait(),
            AdapterLimit(config) if config.max_loras else None,
            AdmissionPreemption(lane) if config.preempt_for_admission else None,
            self.throttle,
            self.deferred_frees,
            PipelineStagger(config.pipeline_parallel_size) if config.staggers_decodes else None,
            EncoderBudget(config) if config.encoder_compute_budget else None,
        ]
        return [rule for rule in rules if rule is not None]

    def scalars(self) -> dict[str, Any]:
        """What the features remember from step to step, beyond requests and blocks."""
        scalars: dict[str, Any] = {}
        if self.throttle is not None:
            scalars["was_capacity_bound"] = self.throttle.was_capacity_bound
        if self.deferred_frees is not None:
            scalars["deferred_frees"] = self.deferred_frees.scalars()
        return scalars

    def restore(self, queued: list[Request], scalars: dict[str, Any]) -> None:
        for request in queued:
            self.grammar_wait.restore(request)
        if self.throttle is not None:
            self.throttle.was_capacity_bound = bool(scalars["was_capacity_bound"])
        if self.deferred_frees is not None:
            self.deferred_frees.restore(scalars["deferred_frees"])
