"""The simulation with its checks, on a policy that is not ours and on what is off by default."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from examples.shortest_job_first import ShortestJobFirst
from scheduler_svc.core.block_pool import BlockRow
from scheduler_svc.core.request import Request
from scheduler_svc.core.rules.admission_preemption import AdmissionPreemption
from scheduler_svc.core.three_queue.scheduler import ThreeQueueScheduler
from scheduler_svc.core.unified.scheduler import UnifiedScheduler
from scheduler_svc.core.unified.step_draft import StepDraft
from segue.types import Generation, SchedulerOutput, StepKey
from tests.sim.settings import Settings, draw_settings
from tests.sim.simulation import Scenario, simulate
from tests.sim.worlds import (
    crowded_and_displacing,
    drafting,
    preempting_and_ageing,
    preempting_for_admission,
    three_queues,
)


def shortest_job_first(rng: random.Random) -> Settings:
    return replace(draw_settings(rng), make_policy=ShortestJobFirst)


@pytest.mark.parametrize("seed", range(8))
def test_a_custom_policy_keeps_every_invariant(seed: int) -> None:
    assert simulate(seed, Scenario(draw=shortest_job_first))["events"] > 0


class Remembering(UnifiedScheduler):
    """Has a memory of its own, stored as docs/policies.md says."""

    num_planned = 0

    def schedule(
        self, key: StepKey, generation: Generation, traceparent: str = ""
    ) -> SchedulerOutput:
        self.num_planned += 1
        return super().schedule(key, generation, traceparent)

    def scalars(self) -> dict[str, Any]:
        return super().scalars() | {"num_planned": self.num_planned}

    def restore(
        self, queued: list[Request], blocks: list[BlockRow], scalars: dict[str, Any]
    ) -> None:
        super().restore(queued, blocks, scalars)
        self.num_planned = int(scalars["num_planned"])


class Renamed(ThreeQueueScheduler):
    """A class of one's own, with rows of the other kind."""


@pytest.mark.parametrize("make_policy", [Remembering, Renamed])
@pytest.mark.parametrize("seed", range(4))
def test_what_a_custom_policy_stored_is_read_by_no_other(
    make_policy: type[UnifiedScheduler | ThreeQueueScheduler], seed: int
) -> None:
    """The policy is changed in each history, as by a new --policy."""

    def draw(rng: random.Random) -> Settings:
        return replace(draw_settings(rng), make_policy=make_policy)

    assert simulate(seed, Scenario(("change_policy",), draw=draw))["events"] > 0


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("draw", [preempting_for_admission, preempting_and_ageing])
def test_preemption_at_admission_keeps_every_invariant(
    draw: Callable[[random.Random], Settings], seed: int
) -> None:
    """Also I12: all requests end, whoever may pass whom."""
    assert simulate(seed, Scenario(draw=draw))["events"] > 0


def count_displacements(patch: pytest.MonkeyPatch) -> list[AdmissionPreemption]:
    """An entry for each, of which all that docs/policies.md promises is checked."""
    begin_step, seen = AdmissionPreemption.begin_step, list[AdmissionPreemption]()
    times: Counter[tuple[AdmissionPreemption, str, str]] = Counter()  # of one life of a lane

    def checked(self: AdmissionPreemption, draft: StepDraft) -> None:
        begin_step(self, draft)
        if self.victim is None or self.displacer is None:
            return
        above, below = self.displacer, self.victim
        assert not draft.num_scheduled_tokens  # so the victim is not scheduled in this step (H20)
        num_levels = below.submission.priority - above.submission.priority
        ahead_ms = above.submission.arrival_unix_ms - below.submission.arrival_unix_ms
        aging_ms = self._config.priority_aging_ms
        assert num_levels > 0
        assert not aging_ms or ahead_ms <= num_levels * aging_ms
        times[self, above.request_id, below.request_id] += 1
        limit = 1 + above.num_preemptions
        assert times[self, above.request_id, below.request_id] <= limit
        seen.append(self)

    patch.setattr(AdmissionPreemption, "begin_step", checked)
    return seen


@pytest.mark.parametrize("first", range(0, 24, 8))
def test_displacing_stays_within_its_bounds_whatever_is_killed(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = count_displacements(monkeypatch)
    for seed in range(first, first + 8):
        simulate(seed, Scenario(draw=crowded_and_displacing, num_calls=range(8, 14)))
    assert seen


@pytest.mark.parametrize("seed", range(200, 230))
def test_drafts_keep_every_invariant(seed: int) -> None:
    """Whatever is killed while drafts are in flight, each client sees one text (I8)."""
    assert simulate(seed, Scenario(draw=drafting))["events"] > 0


@pytest.mark.parametrize("seed", range(100, 130))
def test_three_queues_keep_every_invariant(seed: int) -> None:
    assert simulate(seed, Scenario(draw=three_queues))["events"] > 0
