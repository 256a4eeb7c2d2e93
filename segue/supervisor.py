"""Keeps children running: starts them, starts again what dies, stops them in order.

Knows processes and when they are ready; knows nothing about what they do. Invariant: serve.json
names every child that runs, and when `stop` returns, none does.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from types import TracebackType

from segue.child import Child, ChildGuard, ChildSpec
from segue.console import Console
from segue.state_directory import (
    ServedProcess,
    ServeRecord,
    StateDirectory,
    StateDirectoryError,
)

USAGE_ERROR = 2
MAX_FAILED_STARTS = 3
MAX_BACKOFF_S = 5.0
FIRST_BACKOFF_S = 0.1
POLL_S = 0.05
WAITING_LINE_S = 10.0
STOP_GRACE_S = 5.0

# What else the line about the restart of this child says.
DescribeRestart = Callable[[str], Awaitable[str]]


class ChildFailed(Exception):
    """A child does not start; the message is one readable line."""


class StopRequested(Exception):
    """Ctrl-C or SIGTERM."""


@dataclass(slots=True)
class _Life:
    """A child, and what holds for its process of the moment."""

    child: Child
    is_ready: asyncio.Event = field(default_factory=asyncio.Event)
    num_failed_starts: int = 0
    keeper: asyncio.Task[None] | None = None
    watcher: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        return self.child.spec.name


class Supervisor:
    """Use as a context: leaving it stops every child. `record` is what serve.json says besides."""

    def __init__(
        self,
        directory: StateDirectory,
        console: Console,
        record: ServeRecord,
        describe_restart: DescribeRestart,
    ) -> None:
        self._directory = directory
        self._console = console
        self._record = record
        self._describe_restart = describe_restart
        self._guard = ChildGuard()
        self._lives: dict[str, _Life] = {}
        self._is_starting = True
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._failure: ChildFailed | None = None

    async def __aenter__(self) -> Supervisor:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_signal)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    @property
    def record(self) -> ServeRecord:
        processes = [
            ServedProcess(life.name, life.child.identity, life.child.spec.port)
            for life in self._lives.values()
            if life.child.identity is not None
        ]
        return replace(self._record, processes=tuple(processes))

    async def start(self, spec: ChildSpec) -> None:
        life = _Life(Child(spec, self._directory, self._console, self._guard))
        self._lives[spec.name] = life
        await self._spawn(life, died_at=None, how="")
        life.keeper = asyncio.create_task(self._keep(life))

    async def wait_ready(self, *names: str) -> None:
        """Raises StopRequested or ChildFailed where it comes to that first."""
        begun = time.monotonic()
        said_at = begun
        while waiting := [name for name in names if not self._lives[name].is_ready.is_set()]:
            await _wait_first(self._lives[waiting[0]].is_ready, self._stopping)
            self._check()
            now = time.monotonic()
            if now - said_at > WAITING_LINE_S:
                said_at = now
                self._console.say(f"waiting for {', '.join(waiting)} ({now - begun:.0f} s)")

    async def run_until_stopped(self) -> None:
        """From now on whatever dies is started again, for ever."""
        self._is_starting = False
        await self._stopping.wait()
        self._check()

    async def stop(self) -> None:
        self._stopping.set()
        for stage in sorted({life.child.spec.stage for life in self._lives.values()}, reverse=True):
            lives = [life for life in self._lives.values() if life.child.spec.stage == stage]
            await asyncio.gather(*(self._stop_one(life) for life in lives))
        self._guard.close()
        self._directory.remove_record()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._stopping.is_set():
            raise StopRequested

    def _on_signal(self) -> None:
        if self._stopping.is_set():
            self._hurry.set()
        else:
            self._console.say("stopping (again: kill everything at once)")
        self._stopping.set()

    async def _keep(self, life: _Life) -> None:
        """Starts the child again whenever it ends."""
        while True:
            code = await life.child.wait()
            died_at = time.monotonic()
            is_untold = life.watcher is not None and not life.watcher.done()
            _cancel(life.watcher)
            how = _how_it_ended(code)
            life.num_failed_starts = 0 if life.is_ready.is_set() else life.num_failed_starts + 1
            if self._gives_up(life, code):
                self._failure = ChildFailed(
                    f"{life.name} does not start ({how}): {life.child.last_line}"
                )
                self._stopping.set()
                return
            last = life.child.last_line
            if life.num_failed_starts:
                self._console.say(f"{life.name} does not come up ({how}): {last}; trying again")
            elif is_untold:
                self._console.say(f"{life.name} ended as soon as it was back ({how}): {last}")
            await self._spawn_again(life, died_at, how)

    async def _spawn_again(self, life: _Life, died_at: float, how: str) -> None:
        while True:
            await asyncio.sleep(_backoff_s(life.num_failed_starts))
            try:
                await self._spawn(life, died_at, how)
            except OSError as error:
                # The system has no process or memory to spare at the moment.
                life.num_failed_starts += 1
                self._console.say(f"{life.name} can not be started: {error}; trying again")
            else:
                return

    def _gives_up(self, life: _Life, code: int) -> bool:
        if not self._is_starting:
            return False
        return life.num_failed_starts >= MAX_FAILED_STARTS or code == USAGE_ERROR

    async def _spawn(self, life: _Life, died_at: float | None, how: str) -> None:
        life.is_ready.clear()
        await life.child.start()
        try:
            self._directory.write_record(self.record)
        except StateDirectoryError as error:
            if self._is_starting:
                raise
            self._console.say(str(error))
        life.watcher = asyncio.create_task(self._watch_start(life, died_at, how))

    async def _watch_start(self, life: _Life, died_at: float | None, how: str) -> None:
        while not await life.child.spec.is_ready():
            await asyncio.sleep(POLL_S)
        life.is_ready.set()
        if died_at is not None:
            seconds = time.monotonic() - died_at
            more = await self._describe_restart(life.name)
            self._console.say(
                f"{life.name} ({how}) is back after {seconds:.2f} s, pid {life.child.pid}{more}"
            )

    async def _stop_one(self, life: _Life) -> None:
        for task in (life.keeper, life.watcher):
            _cancel(task)
        life.child.send(signal.SIGTERM)
        ended = asyncio.ensure_future(life.child.wait())
        hurry = asyncio.ensure_future(self._hurry.wait())
        await asyncio.wait(
            {ended, hurry}, timeout=STOP_GRACE_S, return_when=asyncio.FIRST_COMPLETED
        )
        hurry.cancel()
        if not ended.done():
            life.child.send(signal.SIGKILL)
        with contextlib.suppress(asyncio.CancelledError):
            await ended


async def _wait_first(*events: asyncio.Event) -> None:
    """Until one of them is set, or a moment has passed."""
    tasks = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait(tasks, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


def _cancel(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()


def _backoff_s(num_failed_starts: int) -> float:
    """None after a child that had been ready: the first restart is at once."""
    if num_failed_starts == 0:
        return 0.0
    return min(FIRST_BACKOFF_S * 2**num_failed_starts, MAX_BACKOFF_S)


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
