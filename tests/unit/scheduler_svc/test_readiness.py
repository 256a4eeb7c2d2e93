"""Ready means progress: Redis answers, and where requests wait, steps end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from scheduler_svc.core.events import PauseState
from scheduler_svc.readiness import Readiness

STALL_S = 10.0


class World:
    """What readiness looks at, and a clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.lease = SimpleNamespace(is_store_down=False)
        self.counters = SimpleNamespace(num_steps_finished=0)
        self.state = SimpleNamespace(
            counters=self.counters, unplaced=[], lanes={}, pause_state=PauseState.UNPAUSED
        )
        self.loop: Any = SimpleNamespace(
            is_store_down=False, core=SimpleNamespace(state=self.state)
        )
        self.readiness = Readiness(
            cast(Any, self.lease), lambda: self.loop, STALL_S, clock=lambda: self.now
        )

    def after(self, seconds: float) -> bool:
        self.now += seconds
        return self.readiness.is_ready()

    def add_requests(self, count: int) -> None:
        self.state.lanes["e0"] = SimpleNamespace(
            policy=SimpleNamespace(num_unfinished=lambda: count)
        )


def test_a_standby_is_ready_while_redis_answers() -> None:
    world = World()
    world.loop = None
    assert world.after(0)
    world.lease.is_store_down = True
    assert not world.after(0)


def test_a_leader_without_redis_is_not_ready() -> None:
    world = World()
    world.loop.is_store_down = True
    assert not world.after(0)


def test_an_idle_leader_stays_ready() -> None:
    world = World()
    assert world.after(0)
    assert world.after(100 * STALL_S)


def test_requests_without_steps_are_a_stall_from_when_they_came() -> None:
    world = World()
    assert world.after(100)
    world.add_requests(1)
    assert world.after(0.5)
    assert world.after(STALL_S - 1)
    assert not world.after(1)
    world.counters.num_steps_finished += 1
    assert world.after(0)
    assert not world.after(STALL_S + 1)


def test_requests_that_no_executor_has_count_too() -> None:
    world = World()
    world.state.unplaced = ["r"]
    assert world.after(0)
    assert not world.after(STALL_S + 1)


def test_nothing_is_expected_while_paused() -> None:
    world = World()
    world.add_requests(1)
    world.state.pause_state = PauseState.PAUSED_ALL
    assert world.after(0)
    assert world.after(STALL_S + 1)
