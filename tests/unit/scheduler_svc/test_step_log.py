"""`--log-steps` shows what a step moved and drafted, and nothing where there was none of it."""

from __future__ import annotations

from scheduler_svc.step_log import step_line
from segue.types import Generation, SchedulerOutput, StepStats

PLAIN = SchedulerOutput(12, 3, Generation(3, 1), num_scheduled_tokens={"a": 1, "b": 7})


def test_a_plain_step() -> None:
    assert step_line("e0", PLAIN).endswith("running 0 waiting 0, free 0; a:1 b:7")


def test_swapping_and_drafts() -> None:
    plan = SchedulerOutput(
        step_id=13,
        epoch=3,
        generation=Generation(3, 1),
        num_scheduled_tokens={"a": 5},
        draft_token_ids={"a": [-1] * 4},
        swap_out=[(1, 0), (2, 1)],
        swap_in=[(3, 4)],
        copies=[(5, 6)],
        stats=StepStats(num_running=1, num_swapped=2),
    )
    assert step_line("e0", plan).endswith(
        "running 1 waiting 0 swapped 2, free 0; a:5; drafts 4; out 2 blocks; in 1 blocks; "
        "copied 1 blocks"
    )
