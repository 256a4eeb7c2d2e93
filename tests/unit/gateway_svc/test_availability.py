"""Ready means progress."""

from __future__ import annotations

import pytest

from gateway_svc.availability import Availability


@pytest.fixture
def availability() -> Availability:
    """Connected at 0, with an executor, and idle."""
    availability = Availability(stall_s=10, now=0)
    availability.set_connected(True, 0)
    availability.set_status(has_executor=True, num_steps_finished=0, now=0)
    return availability


def test_a_gateway_that_never_had_a_scheduler_is_not_ready() -> None:
    availability = Availability(stall_s=10, now=0)

    assert availability.why_not_ready(0) is not None
    availability.set_connected(True, 1)
    assert availability.why_not_ready(1) is not None
    availability.set_status(has_executor=True, num_steps_finished=0, now=2)
    assert availability.why_not_ready(2) is None


def test_idle_is_ready_for_ever(availability: Availability) -> None:
    assert availability.why_not_ready(10_000) is None


def test_waiting_work_without_a_step_is_not_ready(availability: Availability) -> None:
    availability.set_busy(True, 100)
    assert availability.why_not_ready(110) is None
    assert availability.why_not_ready(110.1) is not None


@pytest.mark.parametrize("by", ["rows", "steps"])
def test_any_progress_starts_the_clock_again(availability: Availability, by: str) -> None:
    availability.set_busy(True, 100)
    if by == "rows":
        availability.note_progress(109)
    else:
        availability.set_status(has_executor=True, num_steps_finished=5, now=109)
    assert availability.why_not_ready(119) is None
    assert availability.why_not_ready(119.1) is not None


def test_the_same_count_of_steps_is_no_progress(availability: Availability) -> None:
    availability.set_busy(True, 100)
    availability.set_status(has_executor=True, num_steps_finished=0, now=109)
    assert availability.why_not_ready(111) is not None


@pytest.mark.parametrize("lost", ["scheduler", "executor"])
def test_a_loss_is_forgiven_for_a_while(availability: Availability, lost: str) -> None:
    if lost == "scheduler":
        availability.set_connected(False, 50)
    else:
        availability.set_status(has_executor=False, num_steps_finished=0, now=50)
    assert not availability.is_available
    assert availability.unavailable_for(53) == 3
    assert availability.why_not_ready(60) is None
    reason = availability.why_not_ready(60.1)
    assert reason is not None
    assert lost in reason
