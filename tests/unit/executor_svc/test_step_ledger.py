"""The executor's side of the step protocol. Each test names the hole of PROTOCOL.md it closes."""

from __future__ import annotations

import pytest

from executor_svc.step_ledger import (
    GapError,
    LedgerFailure,
    LedgerHello,
    LedgerRefused,
    ProtocolError,
    StaleStreamError,
    StepLedger,
)
from segue.types import Generation, ModelRunnerOutput, SchedulerOutput, StepKey

FIRST = Generation(1, 1)
SECOND = Generation(1, 2)


def plan(step_id: int, generation: Generation = FIRST, epoch: int = 1) -> SchedulerOutput:
    return SchedulerOutput(step_id, epoch, generation)


def result(step_id: int, generation: Generation = FIRST) -> ModelRunnerOutput:
    return ModelRunnerOutput(step_id, generation)


def open_stream(
    ledger: StepLedger,
    stream: str,
    generation: Generation = FIRST,
    *,
    next_step_id: int = 1,
    results_after_step_id: int = 0,
    depth: int = 2,
) -> list[ModelRunnerOutput]:
    return ledger.open(
        stream,
        generation,
        next_step_id=next_step_id,
        results_after_step_id=results_after_step_id,
        depth=depth,
    )


def opened(generation: Generation = FIRST, next_step_id: int = 1) -> StepLedger:
    ledger = StepLedger()
    ledger.hello("s", 1, "leader")
    open_stream(ledger, "s", generation, next_step_id=next_step_id)
    return ledger


def run(ledger: StepLedger, step_id: int, generation: Generation = FIRST) -> None:
    assert ledger.accept("s", plan(step_id, generation))
    assert ledger.next_step() == plan(step_id, generation)
    assert ledger.finish(result(step_id, generation))


def test_never_opened_says_so() -> None:
    assert StepLedger().hello("s", 1, "a") == LedgerHello(None, None, 0)


def test_h1_hello_reports_accepted_steps_not_finished_ones() -> None:
    """A step that was accepted may already have overwritten KV that Redis believes in."""
    ledger = opened()
    run(ledger, 1)
    ledger.accept("s", plan(2, epoch=1))
    ledger.next_step()
    ledger.accept("s", plan(3, epoch=7))
    assert ledger.hello("t", 1, "leader") == LedgerHello(FIRST, StepKey(3, 7), 2)


def test_h1_step_id_planned_twice_is_not_answered_with_the_old_result() -> None:
    ledger = opened()
    run(ledger, 1)
    with pytest.raises(GapError, match="planned by epoch 5"):
        ledger.accept("s", plan(1, epoch=5))


def test_h2_other_generation_drops_queue_and_results() -> None:
    ledger = opened()
    run(ledger, 1)
    ledger.accept("s", plan(2))
    assert open_stream(ledger, "s", SECOND, next_step_id=2) == []
    assert ledger.next_step() is None
    assert open_stream(ledger, "s", SECOND) == []
    assert ledger.hello("t", 1, "leader") == LedgerHello(SECOND, StepKey(1, 0), 2)


def test_h2_new_generation_waits_until_the_old_step_can_no_longer_write() -> None:
    ledger = opened()
    ledger.accept("s", plan(1))
    ledger.next_step()
    open_stream(ledger, "s", SECOND, next_step_id=2)
    ledger.accept("s", plan(2, SECOND))
    assert ledger.next_step() is None
    assert ledger.finish(result(1)) is False
    assert ledger.next_step() == plan(2, SECOND)
    assert ledger.take_reset()


def test_h2_late_result_of_an_ended_generation_is_not_kept() -> None:
    ledger = opened()
    ledger.accept("s", plan(1))
    ledger.next_step()
    open_stream(ledger, "s", SECOND, next_step_id=1)
    assert ledger.finish(result(1)) is False
    assert open_stream(ledger, "s", SECOND) == []


def test_h2_step_ids_that_start_over_find_no_old_results() -> None:
    """After a wipe of Redis the lane counts from 1 again, in another generation."""
    ledger = opened()
    run(ledger, 1)
    run(ledger, 2)
    open_stream(ledger, "s", SECOND, next_step_id=1)
    assert open_stream(ledger, "s", SECOND) == []
    run(ledger, 1, SECOND)
    assert open_stream(ledger, "s", SECOND) == [result(1, SECOND)]


def test_h2_reset_is_taken_once_for_each_generation() -> None:
    ledger = opened()
    ledger.accept("s", plan(1))
    ledger.next_step()
    assert [ledger.take_reset(), ledger.take_reset()] == [True, False]
    ledger.hello("t", 1, "leader")
    open_stream(ledger, "t")
    assert ledger.take_reset() is False


def test_h2_step_of_another_generation_is_refused() -> None:
    ledger = opened()
    with pytest.raises(GapError, match="Generation"):
        ledger.accept("s", plan(1, SECOND))


def test_h3_failed_step_drops_the_queue_and_stays_silent() -> None:
    """The next step, already queued, may hit blocks that nobody wrote."""
    ledger = opened()
    ledger.accept("s", plan(1))
    ledger.accept("s", plan(2))
    ledger.next_step()
    assert ledger.fail(1, "out of memory")
    assert ledger.failure == LedgerFailure(1, "out of memory")
    assert ledger.next_step() is None
    assert ledger.accept("s", plan(3))
    assert ledger.next_step() is None


def test_h3_failure_is_known_to_the_next_leader_until_another_generation() -> None:
    ledger = opened()
    ledger.accept("s", plan(1))
    ledger.next_step()
    ledger.fail(1, "bad")
    ledger.hello("t", 2, "next")
    open_stream(ledger, "t")
    assert ledger.failure == LedgerFailure(1, "bad")
    open_stream(ledger, "t", SECOND, next_step_id=2)
    assert ledger.failure is None
    ledger.accept("t", plan(2, SECOND))
    assert ledger.next_step() == plan(2, SECOND)


def test_h3_failure_of_an_ended_generation_does_not_stop_the_new_one() -> None:
    ledger = opened()
    ledger.accept("s", plan(1))
    ledger.next_step()
    open_stream(ledger, "s", SECOND, next_step_id=1)
    ledger.accept("s", plan(1, SECOND))
    assert ledger.fail(1, "bad") is False
    assert ledger.next_step() == plan(1, SECOND)


def test_h4_same_generation_on_a_new_stream_keeps_everything() -> None:
    ledger = opened()
    ledger.accept("s", plan(1))
    ledger.accept("s", plan(2))
    assert ledger.next_step() == plan(1)
    assert ledger.take_reset()
    ledger.hello("t", 2, "next")
    assert open_stream(ledger, "t") == []
    assert ledger.finish(result(1))
    assert ledger.next_step() == plan(2)
    assert ledger.take_reset() is False


def test_h4_steps_are_handed_out_once_and_in_order() -> None:
    ledger = opened()
    assert ledger.accept("s", plan(1))
    assert ledger.accept("s", plan(2))
    assert ledger.accept("s", plan(1)) is False
    assert ledger.next_step() == plan(1)
    assert ledger.next_step() is None
    ledger.finish(result(1))
    assert ledger.accept("s", plan(1)) is False
    assert ledger.next_step() == plan(2)


def test_h4_gap_changes_nothing() -> None:
    ledger = opened()
    with pytest.raises(GapError, match="step 2 after step 0"):
        ledger.accept("s", plan(2))
    assert ledger.next_step() is None
    assert ledger.accept("s", plan(1))


def test_h5_results_of_the_last_depth_accepted_steps_are_kept() -> None:
    """One result is not enough: the leader may die with two steps in flight."""
    ledger = opened()
    run(ledger, 1)
    run(ledger, 2)
    ledger.hello("t", 2, "next")
    assert open_stream(ledger, "t") == [result(1), result(2)]
    ledger.hello("u", 3, "third")
    assert open_stream(ledger, "u", results_after_step_id=1) == [result(2)]


def test_h5_accepting_a_step_is_the_only_acknowledgement() -> None:
    ledger = opened()
    run(ledger, 1)
    run(ledger, 2)
    ledger.accept("s", plan(3))
    ledger.hello("t", 2, "next")
    assert open_stream(ledger, "t") == [result(2)]


def test_h5_a_step_that_is_still_to_run_counts_as_kept() -> None:
    """Else a scheduler restart during the first step of a generation would end it."""
    ledger = opened(next_step_id=8)
    ledger.accept("s", plan(8))
    ledger.next_step()
    assert ledger.hello("t", 2, "next") == LedgerHello(FIRST, StepKey(8, 1), 8)


def test_h5_nothing_accepted_means_first_kept_is_after_last() -> None:
    ledger = opened(next_step_id=8)
    assert ledger.hello("t", 2, "next") == LedgerHello(FIRST, StepKey(7, 0), 8)


def test_h6_an_old_step_may_be_sent_by_a_new_leader() -> None:
    """The stream has authority; the step has only identity."""
    ledger = opened()
    ledger.hello("t", 9, "next")
    open_stream(ledger, "t")
    assert ledger.accept("t", plan(1, epoch=1))


def test_h10_same_epoch_of_another_leader_is_refused() -> None:
    ledger = opened()
    assert ledger.hello("t", 1, "impostor") == LedgerRefused(1, "leader")
    assert ledger.accept("s", plan(1))


def test_h10_same_leader_may_come_back() -> None:
    ledger = opened()
    assert isinstance(ledger.hello("t", 1, "leader"), LedgerHello)
    assert ledger.is_current("t")


def test_h11_lower_epoch_learns_what_was_seen() -> None:
    ledger = StepLedger()
    ledger.hello("s", 57, "leader")
    assert ledger.hello("t", 1, "late") == LedgerRefused(57, "leader")
    assert ledger.is_current("s")


@pytest.mark.parametrize("epoch, leader_id", [(1, "leader"), (2, "next")])
def test_h17_message_of_the_old_stream_is_checked_when_it_is_used(
    epoch: int, leader_id: str
) -> None:
    """It may have been in another handler's buffer when the hello was answered."""
    ledger = opened()
    ledger.hello("t", epoch, leader_id)
    with pytest.raises(StaleStreamError):
        ledger.accept("s", plan(1))
    with pytest.raises(StaleStreamError):
        open_stream(ledger, "s", SECOND)
    open_stream(ledger, "t")
    with pytest.raises(StaleStreamError):
        ledger.accept("s", plan(1))
    assert ledger.accept("t", plan(1))


def test_h19_hello_alone_destroys_nothing() -> None:
    """Only Open of another generation does, and that comes after a commit."""
    ledger = opened()
    ledger.accept("s", plan(1))
    ledger.hello("t", 2, "next")
    assert ledger.next_step() == plan(1)
    assert ledger.finish(result(1))


def test_steps_before_open_are_refused() -> None:
    ledger = opened()
    ledger.hello("t", 1, "leader")
    with pytest.raises(ProtocolError, match="before Open"):
        ledger.accept("t", plan(1))


def test_depth_of_zero_is_refused() -> None:
    ledger = StepLedger()
    ledger.hello("s", 1, "leader")
    with pytest.raises(ProtocolError, match="depth"):
        open_stream(ledger, "s", depth=0)
    assert ledger.generation is None
