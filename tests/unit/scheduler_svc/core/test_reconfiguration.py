"""Settings that are changed while requests run: in the next step, in the rows, at the successor."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler_svc.config import SchedulerServiceConfig
from scheduler_svc.core.events import Setting, SettingsChanged, SettingsRefused, SettingsTaken
from scheduler_svc.core.rows import Key, Table
from scheduler_svc.live_settings import LiveConfiguration
from tests.traced_core import LANE, TracedCore, submission

FLAGS = SchedulerServiceConfig(max_num_seqs=8, max_num_batched_tokens=64)


def core_of(
    flags: SchedulerServiceConfig = FLAGS, predecessor: TracedCore | None = None
) -> TracedCore:
    scheduler = flags.engine_config().scheduler
    configuration = LiveConfiguration(flags)
    return TracedCore(None, scheduler, predecessor=predecessor, configuration=configuration)


def change(core: TracedCore, **values: str) -> list[object]:
    return list(core.commit(SettingsChanged(LiveConfiguration(FLAGS).changes(values, ()))))


def started(core: TracedCore, num_requests: int) -> TracedCore:
    core.connect()
    core.submit(*(submission(f"r{i}", max_tokens=20) for i in range(num_requests)))
    return core


def test_the_next_step_is_planned_by_it() -> None:
    core = started(core_of(), 6)
    assert change(core, max_num_batched_tokens="8")[0] == SettingsTaken(
        {"max_num_batched_tokens": Setting("8", "64")}
    )
    core.answer()
    core.answer()
    assert 0 < sum(core.in_flight()[-1].num_scheduled_tokens.values()) <= 8


def test_who_runs_stays_when_there_are_fewer_seats() -> None:
    """No one is preempted for it, and no one is admitted until there is a seat."""
    core = started(core_of(), 6)
    core.answer()
    change(core, max_num_seqs="2")
    core.submit(submission("late"))
    core.answer()
    core.answer()
    plan = core.in_flight()[-1]
    assert plan.stats.num_running == 6
    assert not plan.preempted_req_ids
    assert "late" not in plan.num_scheduled_tokens
    core.finish_all()
    assert all(request.is_finished for request in core.core.state.requests.values())


def test_a_successor_goes_on_with_it_though_its_flags_are_the_old_ones() -> None:
    core = started(core_of(), 6)
    change(core, max_num_seqs="2", finished_ttl_s="7")
    successor = core_of(predecessor=core)
    assert successor.core.state.config.scheduler.max_num_seqs == 2
    assert successor.core.state.config.finished_ttl_ms == 7000
    assert not successor.core.has_changes()
    generation = core.core.state.lanes[LANE].generation
    assert successor.core.state.lanes[LANE].generation == generation
    assert [plan.key for plan in successor.in_flight()] == [plan.key for plan in core.in_flight()]


def test_a_flag_that_was_changed_since_is_the_later_word() -> None:
    core = core_of()
    change(core, max_num_seqs="2", watermark="0.5")
    successor = core_of(SchedulerServiceConfig(max_num_seqs=5, max_num_batched_tokens=64), core)
    scheduler = successor.core.state.config.scheduler
    assert (scheduler.max_num_seqs, scheduler.watermark) == (5, 0.5)
    successor.commit()
    assert b"max_num_seqs" not in successor.rows.hashes[Key(Table.ENGINE)]["settings"]


def test_what_does_not_go_together_changes_nothing() -> None:
    core = started(core_of(), 2)
    before = core.core.rows()
    (refused,) = change(core, max_num_seqs="65", watermark="0.5")
    assert isinstance(refused, SettingsRefused)
    assert "max_num_batched_tokens must be at least max_num_seqs" in refused.reason
    assert core.core.rows() == before


def test_unset_lets_the_flag_count_again() -> None:
    core = core_of()
    change(core, max_num_seqs="2")
    core.commit(SettingsChanged({"max_num_seqs": None}))
    assert core.core.state.config == FLAGS.engine_config()
    assert core.rows.hashes[Key(Table.ENGINE)]["settings"] == b"{}"


def test_rows_of_a_scheduler_that_knew_no_settings_are_read() -> None:
    core = started(core_of(), 2)
    del core.rows.hashes[Key(Table.ENGINE)]["settings"]
    successor = core_of(predecessor=core)
    assert successor.core.state.config == FLAGS.engine_config()
    assert len(successor.core.state.requests) == 2


@pytest.mark.parametrize("name", ["max_num_seqs", "long_prefill_token_threshold", "watermark"])
def test_what_can_be_changed_is_not_in_the_digest(name: str) -> None:
    """A restart with another budget keeps the KV too."""
    assert replace(FLAGS, **{name: 1}).digest() == FLAGS.digest()
    assert replace(FLAGS, block_size=32).digest() != FLAGS.digest()
