"""A policy of somebody else's adds a rule in its own file (docs/policies.md)."""

from __future__ import annotations

import pytest

from scheduler_svc.core.request import Request
from scheduler_svc.core.rules.rule import Rule, Verdict
from scheduler_svc.core.unified.lane_state import LaneState
from scheduler_svc.core.unified.scheduler import UnifiedScheduler
from scheduler_svc.core.unified.step_draft import StepDraft
from tests.factories import LaneDriver, make_config, make_request


class OneOfEachTenant(Rule):
    def __init__(self, lane: LaneState) -> None:
        self._lane = lane

    def check(self, request: Request, draft: StepDraft) -> Verdict:
        del draft
        tenants = {running.submission.cache_salt for running in self._lane.running}
        return Verdict.SKIP if request.submission.cache_salt in tenants else Verdict.PASS


class TenantLimit(UnifiedScheduler):
    def extra_rules(self) -> list[Rule]:
        return [OneOfEachTenant(self.lane)]


def test_a_rule_of_a_subclass_is_asked() -> None:
    lane = LaneDriver(make_config())
    lane.scheduler = TenantLimit("e0", lane.scheduler.config, lane.requests, lane.journal)
    for name, tenant in (("a1", "a"), ("a2", "a"), ("b1", "b")):
        lane.add(make_request(name, cache_salt=tenant))
    assert list(lane.step().num_scheduled_tokens) == ["a1", "b1"]


class Forgetful(Rule):
    def check(self, request: Request, draft: StepDraft) -> Verdict:
        del request, draft
        return None  # pyright: ignore[reportReturnType]


class WithAForgetfulRule(UnifiedScheduler):
    def extra_rules(self) -> list[Rule]:
        return [Forgetful()]


def test_a_rule_without_a_verdict_ends_the_step_and_not_never() -> None:
    lane = LaneDriver(make_config())
    lane.scheduler = WithAForgetfulRule("e0", lane.scheduler.config, lane.requests, lane.journal)
    lane.add(make_request("a"))
    with pytest.raises(TypeError, match="returned None, which is no Verdict"):
        lane.step()
