"""Which steps were accepted, which runs, which results are kept, and whom this executor obeys.

The executor's side of the step protocol, without I/O, clocks or threads: the service and the
simulation drive the same object. Knows nothing about gRPC or what a step computes. Invariant: of a
generation each step is handed out at most once, in order, without a gap; nothing that comes on
another stream than the current one changes anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass

from segue.types import Generation, ModelRunnerOutput, SchedulerOutput, StepKey


class ProtocolError(Exception):
    """The stream that it came on has to end. The ledger is unchanged."""


class GapError(ProtocolError):
    """The step is not the next one of the generation that is open."""


class StaleStreamError(ProtocolError):
    """Another stream is current."""


@dataclass(slots=True, frozen=True)
class LedgerHello:
    """`generation` None: never opened. Results from `first_kept_step_id` on are kept, or come."""

    generation: Generation | None
    last_step: StepKey | None
    first_kept_step_id: int


@dataclass(slots=True, frozen=True)
class LedgerRefused:
    epoch_seen: int
    leader_id_seen: str


@dataclass(slots=True, frozen=True)
class LedgerFailure:
    step_id: int
    error: str


class StepLedger:
    """One for each process. A stream is any hashable token that its owner never uses twice."""

    def __init__(self) -> None:
        self.epoch_seen = 0
        self.leader_id_seen = ""
        self.failure: LedgerFailure | None = None  # of the open generation
        self._stream: Hashable | None = None
        self._is_stream_open = False
        self._generation: Generation | None = None
        self._first_step_id = 0  # of the generation
        self._last_step: StepKey | None = None
        self._depth = 1
        self._epochs: dict[int, int] = {}  # planning epochs of the last `depth` accepted steps
        self._queue: deque[SchedulerOutput] = deque()
        self._running: SchedulerOutput | None = None
        self._results: dict[int, ModelRunnerOutput] = {}
        self._needs_reset = False

    @property
    def generation(self) -> Generation | None:
        return self._generation

    @property
    def running_step(self) -> SchedulerOutput | None:
        """What runs, though its generation may have ended meanwhile."""
        return self._running

    def is_current(self, stream: Hashable) -> bool:
        return stream == self._stream

    def is_open_on(self, stream: Hashable) -> bool:
        """Whether results may go to it: before Open they are only kept, and Open brings them."""
        return self._is_stream_open and stream == self._stream

    def hello(self, stream: Hashable, epoch: int, leader_id: str) -> LedgerHello | LedgerRefused:
        """The fence. What is not refused makes its stream the current one; it has to Open."""
        is_other = epoch == self.epoch_seen and leader_id != self.leader_id_seen
        if epoch < self.epoch_seen or is_other:
            return LedgerRefused(self.epoch_seen, self.leader_id_seen)
        self.epoch_seen, self.leader_id_seen = epoch, leader_id
        self._stream, self._is_stream_open = stream, False
        return LedgerHello(self._generation, self._last_step, self._first_kept_step_id())

    def open(
        self,
        stream: Hashable,
        generation: Generation,
        *,
        next_step_id: int,
        results_after_step_id: int,
        depth: int,
    ) -> list[ModelRunnerOutput]:
        """Bind the stream to a generation; the kept results that the scheduler lacks, in order.

        Where `failure` is set afterwards, the scheduler has to be told (again).
        """
        self._check_current(stream)
        if depth < 1:
            raise ProtocolError(f"depth {depth}: at least one result has to be kept")
        self._is_stream_open = True
        self._depth = depth
        if generation != self._generation:
            self._begin(generation, next_step_id)
            return []
        self._forget()
        return [
            self._results[step_id]
            for step_id in sorted(self._results)
            if step_id > results_after_step_id
        ]

    def accept(self, stream: Hashable, plan: SchedulerOutput) -> bool:
        """Whether the step is new. Accepting step m acknowledges the result of m - depth (H5)."""
        self._check_current(stream)
        if not self._is_stream_open:
            raise ProtocolError(f"step {plan.step_id} before Open")
        if plan.generation != self._generation:
            raise GapError(f"step {plan.step_id} of {plan.generation}, open is {self._generation}")
        assert self._last_step is not None
        if plan.step_id <= self._last_step.step_id:
            self._check_key(plan)
            return False
        if plan.step_id != self._last_step.step_id + 1:
            raise GapError(f"step {plan.step_id} after step {self._last_step.step_id}")
        self._last_step = plan.key
        self._epochs[plan.step_id] = plan.epoch
        self._forget()
        if self.failure is None:
            self._queue.append(plan)
        return True

    def next_step(self) -> SchedulerOutput | None:
        """The step to run now; None while one runs, be its generation ended or not (H2)."""
        if self._running is not None or not self._queue:
            return None
        self._running = self._queue.popleft()
        return self._running

    def take_reset(self) -> bool:
        """Whether all that was computed has to be forgotten before the step just taken is run."""
        needs_reset, self._needs_reset = self._needs_reset, False
        return needs_reset

    def finish(self, result: ModelRunnerOutput) -> bool:
        """Whether the result counts; not if its generation ended while it was computed."""
        if not self._end_running(result.step_id):
            return False
        self._results[result.step_id] = result
        self._forget()
        return True

    def fail(self, step_id: int, error: str) -> bool:
        """The running step raised: nothing runs until another generation is opened (H3)."""
        if not self._end_running(step_id):
            return False
        self._queue.clear()
        self.failure = LedgerFailure(step_id, error)
        return True

    def _begin(self, generation: Generation, next_step_id: int) -> None:
        """All that was is dropped; what runs goes on, but its output is not wanted."""
        self._generation = generation
        self._first_step_id = next_step_id
        self._last_step = StepKey(next_step_id - 1, 0)
        self._epochs.clear()
        self._queue.clear()
        self._results.clear()
        self.failure = None
        self._needs_reset = True

    def _end_running(self, step_id: int) -> bool:
        running = self._running
        assert running is not None
        assert running.step_id == step_id
        self._running = None
        return running.generation == self._generation

    def _check_current(self, stream: Hashable) -> None:
        if stream != self._stream:
            raise StaleStreamError("another stream is current")

    def _check_key(self, plan: SchedulerOutput) -> None:
        """A step id planned twice is another question than the one we have answered (H1)."""
        epoch = self._epochs.get(plan.step_id, plan.epoch)
        if epoch != plan.epoch:
            raise GapError(
                f"step {plan.step_id} planned by epoch {plan.epoch}, accepted from {epoch}"
            )

    def _first_kept_step_id(self) -> int:
        if self._last_step is None:
            return 0
        return max(self._first_step_id, self._last_step.step_id - self._depth + 1)

    def _forget(self) -> None:
        first = self._first_kept_step_id()
        for kept in (self._results, self._epochs):
            for step_id in [step_id for step_id in kept if step_id < first]:
                del kept[step_id]
