"""Virtual time: a seeded heap of events, processes that can be stopped and killed, streams.

Knows nothing about schedulers, executors or gateways. Invariant: the same seed gives the same
history; nothing happens but by an event of the heap, so a world is a total order of events.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass, field
from typing import Any


class Violation(AssertionError):
    """An invariant of DESIGN.md section 3 does not hold; the message begins with its name."""


@dataclass(slots=True, eq=False)
class Life:
    """One life of a process. What was meant for a dead one is lost, for a stopped one late."""

    name: str
    is_alive: bool = True
    is_stopped: bool = False
    went_on_at: int = 0  # after the last stop, or its start
    backlog: list[Callable[[], None]] = field(default_factory=list)
    on_death: list[Callable[[], None]] = field(default_factory=list)


class World:
    def __init__(self, seed: int, *, is_verbose: bool = False) -> None:
        self.seed = seed
        self.is_verbose = is_verbose
        self.rng = random.Random(seed)
        self.check_rng = random.Random(seed)  # so that what is checked changes nothing
        self.now = 1_000_000  # unix milliseconds
        self.num_events = 0
        self.after_event: Callable[[], None] = lambda: None
        self.log: deque[str] = deque(maxlen=2000)
        self._heap: list[tuple[int, int, int, Life | None, Callable[[], None]]] = []
        self._count = 0

    def note(self, text: str) -> None:
        self.log.append(f"{self.now - 1_000_000:6d} {text}")

    def detail(self, *what: Any) -> None:
        """What is noted only when a world is run again because it failed."""
        if self.is_verbose and type(what[-1]).__name__ not in ("Alive", "SignOfLife"):
            self.note(" ".join(map(str, what))[:400])

    def at(self, when: int, life: Life | None, action: Callable[[], None]) -> None:
        self._push(when, 1, life, action)

    def _push(self, when: int, order: int, life: Life | None, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._heap, (when, order, self._count, life, action))

    def after(self, delay: int, life: Life | None, action: Callable[[], None]) -> None:
        self.at(self.now + delay, life, action)

    def run(self, until: Callable[[], bool], deadline: int) -> bool:
        """Events in order until `until()` holds; False if that does not happen by `deadline`."""
        while self._heap and self._heap[0][0] <= deadline:
            when, _, _, life, action = heapq.heappop(self._heap)
            if life is not None and not life.is_alive:
                continue
            self.now = when
            if life is not None and life.is_stopped:
                life.backlog.append(action)
                continue
            self.num_events += 1
            action()
            self.after_event()
            if until():
                return True
        return False

    def stop(self, life: Life) -> None:
        """SIGSTOP: whatever reaches the process waits; its connections stay."""
        self.note(f"{life.name} is stopped")
        life.is_stopped = True

    def resume(self, life: Life) -> None:
        if not (life.is_alive and life.is_stopped):
            return
        self.note(f"{life.name} goes on")
        life.is_stopped = False
        life.went_on_at = self.now
        backlog, life.backlog = life.backlog, []
        for action in backlog:  # before whatever else comes at this time
            self._push(self.now, 0, life, action)

    def kill(self, life: Life) -> None:
        """SIGKILL: nothing of the process happens any more; its peers notice later."""
        if not life.is_alive:
            return
        self.note(f"{life.name} is killed")
        life.is_alive = False
        life.backlog.clear()
        callbacks, life.on_death = life.on_death, []
        for callback in callbacks:
            callback()


class Stream:
    """One bidirectional stream: what is sent arrives late, in order, until the stream is cut.

    `ends` are the lives at both ends; `receivers` take a message, or None when the stream is known
    to have ended there: each end learns of a cut in its own time, and may go on receiving until
    then what was on its way, or not.
    """

    def __init__(
        self, world: World, ends: tuple[Life, Life], receivers: tuple[Receiver, Receiver]
    ) -> None:
        self.world = world
        self.ends = ends
        self.receivers = receivers
        self.is_cut = False
        self.extra_delay = 0
        self._is_lossy = world.rng.random() < 0.5
        self._has_ended = [False, False]
        self._last_arrival = [world.now, world.now]
        for life in ends:
            life.on_death.append(self.cut)

    def send(self, side: int, message: Any) -> None:
        """From end `side` to the other one."""
        if self._has_ended[side]:
            return
        world, to = self.world, 1 - side
        world.detail(self.ends[side].name, "->", self.ends[to].name, message)
        delay = world.rng.choice((1, 1, 2, 3))
        if self.extra_delay:
            delay += world.rng.randrange(self.extra_delay)
        arrival = max(self._last_arrival[to], world.now + delay)
        self._last_arrival[to] = arrival
        world.at(arrival, self.ends[to], lambda: self._arrive(to, message))

    def cut(self) -> None:
        if self.is_cut:
            return
        self.is_cut = True
        for side in (0, 1):
            delay = self.world.rng.choice((0, 1, 5, 40, 150))
            self.world.after(delay, self.ends[side], lambda side=side: self._end(side))

    def _arrive(self, side: int, message: Any) -> None:
        if not self._has_ended[side] and not (self.is_cut and self._is_lossy):
            self.receivers[side](message)

    def _end(self, side: int) -> None:
        self._has_ended[side] = True
        self.receivers[side](None)


Receiver = Callable[[Any], None]


class Pending:
    """Awaitable: `start(done)` begins something in the world, `done(value)` goes on."""

    def __init__(self, start: Callable[[Callable[[Any], None]], None]) -> None:
        self.start = start

    def __await__(self) -> Generator[Pending, Any, Any]:
        answer = yield self
        if isinstance(answer, Exception):
            raise answer
        return answer


def drive(
    coroutine: Coroutine[Pending, Any, Any], ended: Callable[[Exception | None], None]
) -> None:
    """Run a coroutine on the world's events; its only awaits are `Pending`s."""

    def go_on(answer: Any) -> None:
        try:
            pending = coroutine.send(answer)
        except StopIteration:
            ended(None)
            return
        pending.start(go_on)

    go_on(None)
